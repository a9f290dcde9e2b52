"""Describes the retention marks of a partition (`velaray.client.retention_marks`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.broker.partition import messages as m
from velaray.broker.partition.maintenance import Maintenance
from velaray.broker.partition.partition_reads import Subscriptions
from velaray.broker.subscription.messages import GetDetails
from velaray.client.retention_marks import is_mark
from velaray.topology.messages import Message


class Log(Protocol):
    """What the description needs of the partition's log."""

    @property
    def end_offset(self) -> int:
        """The offset after the newest durable entry."""
        ...


class Partition(Protocol):
    """What the description needs of a partition."""

    runtime: Runtime[PartitionState]
    maintenance: Maintenance

    @property
    def log(self) -> Log:
        """The log."""
        ...

    @property
    def subscriptions(self) -> Subscriptions:
        """The table of subscriptions."""
        ...


async def marks(partition: Partition, request: m.Marks) -> list[m.Mark]:
    """The retention marks, with what each holds."""
    found: list[m.Mark] = []
    named = await partition.runtime.read(
        lambda state: sorted(
            (name, known.ref.incarnation)
            for name, known in state.subscriptions.items()
            if is_mark(name, known.properties)
        )
    )
    backlog = partition.maintenance.backlog
    for name, incarnation in named:
        asked = GetDetails(partition.log.end_offset)
        details = await partition.subscriptions.ask_subscription(name, asked)
        behind, mark = details["backlog"], details["acked_before"]
        found.append(
            {
                "subscription": name,
                "incarnation": incarnation,
                "readers": len(details["consumers"]),
                "last_left_ms": details.get("last_left_ms"),
                "entries": behind,
                "bytes": backlog.bytes_from(mark) if behind else 0,
                "oldest_ms": await backlog.age_ms(mark) if behind else 0,
            }
        )
    return found


HANDLERS: dict[type[Message], Callable[[Partition, Any], Awaitable[Any]]] = {m.Marks: marks}
