"""Parts of pages: each is asked for by itself, and one that has no answer says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Generic, TypeVar

from velaray.client.admin.errors import AdminError

ValueT = TypeVar("ValueT")

PART_S = 5.0
"""The time limit of a part: an actor that recovers must not hold the whole page."""


@dataclass(frozen=True, slots=True)
class Part(Generic[ValueT]):
    """The answer, or why there is none."""

    value: ValueT | None
    problem: str = ""

    @property
    def known(self) -> ValueT:
        """The answer, which must be there."""
        assert self.value is not None
        return self.value


async def part(work: Awaitable[ValueT], limit_s: float = PART_S) -> Part[ValueT]:
    """The answer of a call; why there is none, if it is refused or takes too long."""
    try:
        async with asyncio.timeout(limit_s):
            return Part(await work)
    except AdminError as error:
        return Part(None, str(error))
    except TimeoutError:
        return Part(None, f"no answer within {limit_s:g} s: it is busy, or it restarts")
