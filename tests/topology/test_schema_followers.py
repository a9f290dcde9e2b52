"""How a schema registry makes sure that no partition uses an outdated cached version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from velaray.broker.schema_registry import followers
from velaray.broker.schema_registry.followers import Followers
from velaray.broker.schema_registry.messages import DropVersions

LEASE_S = 0.3


class Connection:
    """A partition that drops its cache, or one that doesn't answer."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.dropped = 0

    async def ask(self, request: Any, timeout: float) -> None:
        assert isinstance(request, DropVersions) and 0 < timeout <= LEASE_S
        if self.error is not None:
            raise self.error
        self.dropped += 1


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], Awaitable[None]]], None]:
    monkeypatch.setattr(followers, "LEASE_S", LEASE_S)

    async def main(scenario: Callable[[Any], Awaitable[None]]) -> None:
        await scenario(Followers())

    return lambda scenario: asyncio.run(main(scenario))


def test_a_schema_change_drops_the_cache_of_a_partition_with_a_lease(run) -> None:
    async def scenario(tracked: Followers) -> None:
        used, unused, unknown = Connection(), Connection(), Connection()
        for each in (used, unused):
            tracked.add(each)
        for each in (used, unknown):
            tracked.grant(each)
        await tracked.drop_caches()
        assert (used.dropped, unused.dropped, unknown.dropped) == (1, 0, 0)

    run(scenario)


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError()])
def test_a_schema_change_waits_for_the_lease_of_a_partition_that_does_not_answer(
    run, error
) -> None:
    async def scenario(tracked: Followers) -> None:
        silent = Connection(error)
        tracked.add(silent)
        lease_end = asyncio.get_running_loop().time() + LEASE_S
        tracked.grant(silent)
        await tracked.drop_caches()
        assert asyncio.get_running_loop().time() >= lease_end

    run(scenario)


def test_a_schema_change_waits_for_the_lease_of_a_lost_partition(run) -> None:
    async def scenario(tracked: Followers) -> None:
        lost = Connection()
        tracked.add(lost)
        lease_end = asyncio.get_running_loop().time() + LEASE_S
        tracked.grant(lost)
        tracked.lost(lost)
        await tracked.drop_caches()
        assert asyncio.get_running_loop().time() >= lease_end and not lost.dropped

    run(scenario)


def test_a_schema_change_waits_for_leases_of_an_earlier_activation(run) -> None:
    async def scenario(tracked: Followers) -> None:
        lease_end = asyncio.get_running_loop().time() + LEASE_S
        tracked.recovered()
        await tracked.drop_caches()
        assert asyncio.get_running_loop().time() >= lease_end

    run(scenario)
