"""The requests of migration and failover that a partition answers."""

from __future__ import annotations

from typing import Any, TypedDict

from velaray.geo.replication.messages import Point
from velaray.topology.messages import Request

# -- the source of a migration ---------------------------------------------------------


class BeQuiet(Request[None]):
    """Pause delivery before a fence, and wait for acknowledgements in transit."""


class Fence(Request[None]):
    """Put up the fence for a migration of the tenant; everything before it is durable then.

    Refused CONFLICT if the migration is over.
    """

    migration: int


class Unfence(Request[None]):
    """Take the fence down after a rollback. Refused as `Fence`."""

    migration: int


class Moving(TypedDict):
    """What would move: how many entries were ever stored, the durable subscriptions with their
    properties, whether the topic is terminated, the replicators that read here, and whether some
    entries exist only in a compacted view."""

    entries: int
    subscriptions: dict[str, dict[str, str]]
    terminated: bool
    replicators: list[str]
    only_compacted: bool


class Extent(Request[Moving]):
    """Describe what would move."""


class Remaining(Request[int]):
    """The number of entries that ``cluster`` may still lack, by its replicator's cursor, plus the
    complete transactions that weren't reported to it.

    Refused NOT_FOUND if there is no replicator.
    """

    cluster: str


class Tail(Request[Point | None]):
    """The position of the newest entry that ``cluster`` must have once everything is there; None if
    consumers can read no entry."""

    cluster: str


class OpenTransactions(Request[list[Point]]):
    """The open transactions with entries here or acknowledgements in a subscription."""


# -- the target of a migration ---------------------------------------------------------


class SettleTransactions(Request[str]):
    """Have complete transactions of other clusters decided.

    Returns the reason why one can't be; "" if there is none.
    """


class TakeProgress(Request[None]):
    """Apply ``parts`` of the subscription progress of cluster ``source``, as if its replicator had
    sent them. They are durable on return."""

    source: str
    parts: list[bytes]


# -- failover --------------------------------------------------------------------------


class SettleProgress(Request[None]):
    """Apply all waiting progress of other clusters whose entries have arrived."""


class FailoverReport(Request[dict[str, Any]]):
    """Report what arrived from ``cluster``.

    The report has the newest entry's position there and its publish time; for each subscription,
    how many of these entries may still be delivered or redelivered, and the time of the last
    progress from there (None: none in this activation).
    """

    cluster: str
