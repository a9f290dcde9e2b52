"""Progress that was under way, sent once more: late, repeated, in another order.

Everything that replicators send is recorded. A client with the replicator's credentials sends it
again over the wire, at a time that the run chooses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.sim.cluster import REPLICATION_SECRET
from tests.sim.geo_checkers import Heard
from velaray.broker.subscription.progress_form import read_part
from velaray.client.exceptions import VelarayError
from velaray.events.ids import TopicName
from velaray.geo.replication.replicator_connections import RemoteWay
from velaray.geo.replication.replicator_settings import CannotReplicate, Remote
from velaray.geo.replication.replicator_target import Target
from velaray.topology.auth import replicator_proof
from velaray.wire.replication import Marker

EPOCH = 1 << 62
"""Later than any replicator's: it takes the place of a connected one."""
MOST = 40
"""The largest number of parts that are sent again."""


@dataclass
class SentProgress:
    """All parts by source cluster, target cluster and topic partition, and when each part was
    confirmed."""

    parts: dict[tuple[str, str, str], list[bytes]] = field(default_factory=dict)
    heard: list[Heard] = field(default_factory=list)

    def to(self, cluster: str) -> list[tuple[str, str, list[bytes]]]:
        """Source, topic partition and parts of the progress that was sent to a cluster."""
        return [
            (source, topic, parts)
            for (source, target, topic), parts in self.parts.items()
            if target == cluster
        ]


@contextmanager
def remembered() -> Iterator[SentProgress]:
    """Record the progress that is sent within the context."""
    sent, original = SentProgress(), Target.send_marker

    async def send_marker(self: Target, kind: Marker, payload: bytes, now_ms: int) -> None:
        if kind is Marker.PROGRESS:
            where = (self._source, self.cluster, str(self._topic))
            sent.parts.setdefault(where, []).append(payload)
        await original(self, kind, payload, now_ms)
        if kind is Marker.PROGRESS:
            sent.heard += _read(self, payload)

    Target.send_marker = send_marker  # type: ignore[method-assign]
    try:
        yield sent
    finally:
        Target.send_marker = original  # type: ignore[method-assign]


def _read(target: Target, payload: bytes) -> Iterator[Heard]:
    now, part = asyncio.get_running_loop().time(), read_part(target._source, payload)
    where = (now, target.cluster, str(target._topic), part.subscription)
    for origin, told in part.origins.items():
        ranges = tuple((each.ledger_id, each.first, each.end) for each in told.ranges)
        yield Heard(*where, origin, tuple(told.up_to), ranges)


async def send_again(
    source: str, remote: Remote, topic: str, parts: list[bytes], rng: Random
) -> None:
    """Send some of the parts, in any order, some twice; returns when all of them are taken."""
    chosen = rng.sample(parts, min(len(parts), MOST))
    chosen += rng.sample(chosen, len(chosen) // 2)
    while chosen:
        try:
            await _send(source, remote, TopicName.parse(topic), chosen)
        except (VelarayError, CannotReplicate, OSError, TimeoutError):
            await asyncio.sleep(1.0)


async def _send(source: str, remote: Remote, topic: TopicName, parts: list[bytes]) -> None:
    """Send all, the last first; what is taken isn't in ``parts`` any more."""

    async def prepare(lookup: Any) -> None:
        """It is there."""

    way = RemoteWay(remote, topic, prepare)
    ends = way, topic, source, remote.name
    proof = replicator_proof(REPLICATION_SECRET, source, remote.name, "")
    target = Target(*ends, EPOCH, lambda *_: None, lambda error: None, proofs=proof)
    try:
        await target.open()
        while parts:
            await target.send_marker(Marker.PROGRESS, parts[-1], 1)
            parts.pop()
    finally:
        target.abort()
