"""The messages between a partition and its replicators, over the controlling connection.

The partition sends `Replicate` and notices to a replicator. The replicator sends requests of
`velaray.geo.replication.messages` and `ReplicatorState` to the partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from velaray.broker.subscription.messages import TO_SUBSCRIPTION
from velaray.geo.replication.messages import Committed, ExportProgress, Replicated
from velaray.geo.replication.replicator_settings import Remote
from velaray.topology.messages import Codec, Message, Request
from velaray.wire.replication import Marker


class Replicate(Request[None]):
    """Replicate with these settings for the activation ``epoch`` of the partition, as long as this
    connection is open. Refused FENCED if a newer activation was served."""

    epoch: int
    remote: Remote


class Status(Request[dict[str, Any] | None]):
    """The status of a replicator; None if it isn't running. Open to every caller."""


# -- notices of the partition ----------------------------------------------------------


class Rest(Message):
    """The partition is about to be passivated: don't activate it again unless work is left."""


class ProgressNews(Message):
    """Versions of subscriptions with new progress, and the names of deleted ones."""

    changed: dict[str, list[int]]
    gone: Sequence[str]


class SendMarker(Message):
    """Send a marker behind all entries below offset ``behind``.

    It replaces a waiting marker of the same ``key``.
    """

    key: str
    kind: Marker
    payload: bytes
    behind: int


class TransactionNews(Message):
    """There is something new for `Committed`."""


NOTICES = (Rest, ProgressNews, SendMarker, TransactionNews)

# -- notices of the replicator ---------------------------------------------------------


class ReplicatorState(Message):
    """Whether the replicator is idle, and whether it is connected with the other cluster."""

    quiet: bool
    connected: bool


TO_REPLICATOR = TO_SUBSCRIPTION.plus(Replicate, Status, *NOTICES)
"""What a replicator accepts: it is also a subscription."""

FROM_REPLICATOR = Codec(ExportProgress, Committed, Replicated, ReplicatorState)
"""What the partition's end of the connection accepts."""
