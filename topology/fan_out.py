"""Concurrent work on many items, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

FAN_OUT = 16
"""The number of partitions that are called at once."""

ResultT = TypeVar("ResultT")


async def each(
    items: Sequence[Any], work: Callable[[Any], Awaitable[ResultT]], at_once: int = FAN_OUT
) -> list[ResultT]:
    """``work`` on every item, ``at_once`` at a time; results in the order of the items.

    Raises the first error and starts nothing more then.
    """
    places = asyncio.Semaphore(at_once)

    async def limited(item: Any) -> ResultT:
        async with places:
            return await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(limited(item)) for item in items]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [task.result() for task in tasks]
