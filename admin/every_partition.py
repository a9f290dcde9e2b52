"""Changes to several partitions of a topic, with errors that name the changed partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from velaray.admin.http import AdminError, status_of
from velaray.topology.fan_out import each
from velaray.topology.rpc import reason_of
from velaray.topology.transient import TRANSIENT

ResultT = TypeVar("ResultT")


async def change_every(
    work: Mapping[str, Callable[[], Awaitable[ResultT]]],
) -> dict[str, ResultT]:
    """Apply each change, a few at a time; returns the answers by name.

    A failure doesn't stop the other changes. If all fail, raises the first error unchanged. If some
    fail, raises `AdminError`, which names the changed partitions, the unchanged ones and the
    reason.
    """
    answers: dict[str, ResultT] = {}
    failures: dict[str, Exception] = {}

    async def change(name: str) -> None:
        try:
            answers[name] = await work[name]()
        except TRANSIENT as error:
            failures[name] = error

    await each(list(work), change)
    if not failures:
        return {name: answers[name] for name in work}
    first = failures[min(failures)]
    if not answers:
        raise first
    reasons = "; ".join(f"not for {name}: {reason_of(failures[name])}" for name in sorted(failures))
    raise AdminError(
        status_of(first),
        f"done for {', '.join(sorted(answers))}, but {reasons}. "
        "Repeat the request for each of these partitions by its name",
    )
