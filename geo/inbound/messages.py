"""The requests about replication from clusters that don't push to this one."""

from __future__ import annotations

from typing import Any

from velaray.broker.actor_messages import ACTOR_REQUESTS
from velaray.geo.replication.replicator_messages import Status
from velaray.geo.replication.replicator_settings import Remote
from velaray.topology.messages import Codec, Request


class Pulls(Request[dict[str, dict[str, Any] | None]]):
    """The status of each inbound replicator of a partition, by cluster; None if it doesn't
    answer."""


class Pull(Request[None]):
    """Copy from ``remote`` for the activation ``epoch`` of the partition, as long as this
    connection is open.

    ``life`` counts the starts in that activation. Refused FENCED if a newer one was served.
    """

    epoch: int
    life: int
    remote: Remote


TO_INBOUND_REPLICATOR = Codec(*ACTOR_REQUESTS, Pull, Status)
"""What an inbound replicator accepts."""
