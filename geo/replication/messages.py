"""The requests about replication that a partition answers, besides those of `velaray.broker`.

A transaction of another cluster is named by this cluster's id of it
(`velaray.actors.partition.remote_transactions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from velaray.topology.messages import Request

Point = tuple[int, int]
"""A ledger and an entry, or a coordinator and a sequence."""


class Replication(Request[dict[str, dict[str, Any]]]):
    """The state of each replicator, by cluster."""


# -- progress of subscriptions ---------------------------------------------------------


class ExportedProgress(TypedDict):
    """Parts of a subscription's progress, each a SubscriptionProgress.

    ``token`` is for the next request; ``more``: send it at once.
    """

    token: Any
    parts: list[bytes]
    more: bool


class ExportProgress(Request[ExportedProgress]):
    """The progress of ``subscription`` since the token ``since``, for ``cluster``.

    Entries from clusters that aren't ``peers`` have positions of this one; None: all are peers.
    """

    subscription: str
    cluster: str
    since: Any = None
    peers: list[str] | None = None


class ReplicatedSubscriptions(Request[dict[str, list[int]]]):
    """The durable subscriptions whose progress is replicated, each with a version that changes when
    its progress may have changed.

    ``all`` includes every one but replicators. Activates no subscription.
    """

    all: bool = False


class ImportProgress(Request[None]):
    """Apply ``part``, a SubscriptionProgress of cluster ``source``, durably."""

    source: str
    part: bytes


# -- transactions of other clusters ----------------------------------------------------


class ForeignArrived(Request[None]):
    """Note, at the deciding partition, that a transaction is complete at partition ``topic``.

    ``topics`` are all its participants; ``again``: this was reported before.
    """

    transaction: Point
    topic: str
    topics: list[str]
    given_up: bool
    again: bool


class ForeignWaits(Request[bool]):
    """Whether a transaction is complete here and waits for its verdict."""

    transaction: Point


class EndForeign(Request[None]):
    """Apply the verdict of the deciding partition, durably."""

    transaction: Point
    commit: bool


class GiveUpKept(Request[bool]):
    """Give a transaction up, at its deciding partition, unless it is released; returns whether it
    is."""

    transaction: Point
    topics: list[str]


class SettleForeign(Request[dict[str, str]]):
    """Report all complete transactions; returns the failed reports with their errors."""


class GiveUpForeign(Request[dict[str, int]]):
    """Give up all transactions of ``cluster`` (None: of any) that can't be released.

    Returns how many were ``given_up``, and ``released`` all the same.
    """

    cluster: str | None = None


class ForeignTransactions(Request[dict[str, list[dict[str, Any]]]]):
    """The state of other clusters' transactions here: the ``incomplete`` ones, the ``complete``
    ones that wait for their deciding partition, and those that this partition decides (``kept``).
    """


# -- transactions that go to other clusters --------------------------------------------


class CommittedTransactions(TypedDict):
    """Transactions for a cluster, as (number, transaction, offset and position of the last entry,
    participants); the participants are None until they are known.

    ``named`` are the participants of unnamed transactions by number. ``complete`` is the end of
    the log that these transactions cover; None if there are more.
    """

    transactions: list[tuple[int, Point, int, Point, list[str] | None]]
    named: list[tuple[int, list[str]]]
    complete: Point | None


class Committed(Request[CommittedTransactions]):
    """The durable transactions for the replicator's cluster after number ``after``.

    Also the participants of those ``unnamed`` transactions that are known by now.
    """

    after: int
    unnamed: Sequence[int]


class Replicated(Request[None]):
    """Note that the replicator's cluster has all entries of these transactions from here."""

    numbers: list[int]
