"""Trimming as an option of a run: the policies that apply, and what they must not do.

Policies are chosen from a seed of their own, so that runs without them stay the same. Each decision
is judged from the disk, just before its frame is written: by the durable state of the
subscriptions, and by the policies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.sim.attic import HistoryStore, SimDisk
from tests.sim.contents import contents_of
from tests.sim.loop import current_node
from velaray.actors.catalog.machine import CatalogMachine
from velaray.actors.catalog.state import find_topic
from velaray.actors.machine import Machine
from velaray.actors.partition.machine import (
    PartitionMachine,
)
from velaray.actors.partition.state import PartitionState
from velaray.actors.subscription.cursor import Cursor, unpack_ranges
from velaray.actors.subscription.machine import SubscriptionMachine
from velaray.broker import topic_policies
from velaray.events.codec import decode, encode
from velaray.events.events_pb2 import (
    EntriesExpired,
    EntriesTrimmed,
    SubscriptionCreated,
)
from velaray.events.ids import ActorKey, ActorKind
from velaray.journal.errors import NotStored
from velaray.journal.memory import MemoryStore
from velaray.journal.replay import load_manifest, replay
from velaray.wire.messages import publish_time

MINUTE_MS, MIB = 2_000, 1 << 10
"""What a minute and a megabyte of a policy are in a run: runs are short."""
NEVER_S = 36_000.0
EVICTION = "consumer_backlog_eviction"
_WATCHED = tuple(encode(kind())[:2] for kind in (EntriesTrimmed, EntriesExpired))


@dataclass(frozen=True)
class Plan:
    """The policies of a run's topics."""

    maintenance_s: float
    minutes: int
    megabytes: int
    ttl_s: int
    quota: dict[str, Any] | None

    def policies(self) -> Iterator[tuple[str, Any]]:
        """Name and value of what differs from the defaults."""
        if (self.minutes, self.megabytes) != (0, 0):
            limits = {"retentionTimeInMinutes": self.minutes, "retentionSizeInMB": self.megabytes}
            yield "retention", limits
        if self.ttl_s:
            yield "messageTTL", self.ttl_s
        if self.quota is not None:
            yield "backlogQuota", {"destination_storage": self.quota}


def make_plan(seed: int | str) -> Plan | None:
    """The plan of a seed; most have none."""
    rng = Random(f"{seed}/retention")
    if rng.random() >= 0.3:
        return None
    minutes, megabytes = rng.choice([(0, 0), (0, 0), (0, 0), (-1, -1), (1, -1), (-1, 3), (2, 2)])
    quota = None
    if rng.random() < 0.3:
        policy = rng.choice(["producer_request_hold", EVICTION])
        quota = {"policy": policy, "limitSize": rng.randint(300, 3_000)}
    return Plan(
        maintenance_s=rng.choice([0.3, 1.0, 2.0]),
        minutes=minutes,
        megabytes=megabytes,
        ttl_s=rng.choice([0, 0, 0, 2, 5]),
        quota=quota,
    )


def shorten_units(replace: Any) -> None:
    """Let minutes and megabytes be short."""
    replace(topic_policies, "MINUTE_MS", MINUTE_MS)
    replace(topic_policies, "MIB", MIB)


async def check_frame(records: list[bytes]) -> None:
    """Judge the decisions in a frame that is about to be written."""
    node: Any = current_node()
    watched = [raw for raw in records if raw[:2] in _WATCHED]
    if (
        not watched
        or node.actor is None
        or node.key.kind
        not in (
            ActorKind.PARTITION,
            ActorKind.SUBSCRIPTION,
        )
    ):
        return
    cluster = node.actor.actor_system._cluster
    for raw in watched:
        faults = await _judge(cluster, node, decode(raw))
        cluster.failures += [f"{node.key}: {fault}" for fault in faults]


async def _judge(cluster: Any, node: Any, event: Any) -> list[str]:
    """The faults of a decision. A deleted topic is judged while its journals exist.

    A topic's partitions are deleted before its subscriptions: a slow partition may still write
    an earlier decision.
    """
    judge = _judge_trim if isinstance(event, EntriesTrimmed) else _judge_expired
    try:
        return await judge(cluster, node, event)
    except NotStored as error:
        # Let out, it would pass for an error of the actor's own journal.
        return [str(error)] if await _topic_exists(cluster, node.key) else []


async def _topic_exists(cluster: Any, key: ActorKey) -> bool:
    """Whether the catalog has the topic of an actor, and not only another one of its name."""
    catalog = await _state(HistoryStore(cluster.disk), ActorKey.catalog(), CatalogMachine())
    found = find_topic(catalog, key.topic_name)
    return found is not None and found.incarnation == key.topic_incarnation


async def _judge_trim(cluster: Any, node: Any, event: Any) -> list[str]:
    """Nothing that a durable subscription hasn't acknowledged is trimmed, nor what retention
    keeps; never the current ledger."""
    store, journal = HistoryStore(cluster.disk), node.key.text()
    state: PartitionState = await _state(store, node.key, PartitionMachine())
    if (await load_manifest(store, journal)).epoch != node.actor.runtime.journal.epoch:
        return []  # a superseded owner: what it writes is never read
    listed = {info.ledger_id: info for info in node.actor.runtime.journal.ledgers}
    faults = []
    cluster.history.add("trimmed", journal=journal, ledgers=[t.ledger_id for t in event.ledgers])
    for ledger in event.ledgers:
        info = listed[ledger.ledger_id]
        if not info.sealed:
            faults.append(f"the current ledger {info.ledger_id} is trimmed")
        if not _retention_lets_go(cluster.plan, list(listed.values()), info, node):
            faults.append(f"ledger {info.ledger_id} is trimmed within its retention")
        span = state.table.span(ledger.ledger_id)
        for known in state.subscriptions.values():
            cursor = await _cursor(store, node.key, known.ref)
            if span.end and cursor.next_unacked(span.first) < span.end:
                faults.append(
                    f"ledger {info.ledger_id}, offsets {span.first} to {span.end - 1}, is trimmed; "
                    f"{known.ref} has {cursor}"
                )
    state.table.trim(ledger.ledger_id for ledger in event.ledgers)
    if gaps := state.table.gone():
        cluster.history.add("gaps", journal=journal, ledgers=gaps)
    return faults


def _retention_lets_go(plan: Plan, ledgers: list[Any], info: Any, node: Any) -> bool:
    minutes, megabytes = plan.minutes, plan.megabytes
    if node.key.namespace != "default":
        minutes = megabytes = 0
    behind = [each for each in ledgers if each.ledger_id > info.ledger_id]
    newer = sum(each.bytes - each.data_offset for each in behind)
    age_ms = node.actor.actor_system.clock_ms() - info.sealed_ms
    too_old = minutes >= 0 and age_ms >= minutes * MINUTE_MS
    too_much = megabytes >= 0 and newer >= megabytes * MIB
    return too_old or too_much


async def _judge_expired(cluster: Any, node: Any, event: Any) -> list[str]:
    """What expires by its age is old enough; what counts as trimmed is; the rest is by quota."""
    store = HistoryStore(cluster.disk)
    hand = ActorKey.of_partition(node.key.topic_name, node.key.topic_incarnation)
    offsets = [at for first, end in unpack_ranges(event.ranges) for at in range(first, end)]
    log = [record.blob async for record in replay(store, hand.text()) if record.blob is not None]
    cluster.history.add(
        "expired",
        subscription=node.key.subscription,
        topic=str(node.key.topic_name),
        reason=event.reason,
        entries=len(offsets),
        contents=[text for at in offsets for text in contents_of(log[at])],
    )
    if event.reason == "trimmed":
        state: PartitionState = await _state(store, hand, PartitionMachine())
        return [f"{at} isn't trimmed" for at in offsets if state.table.kept_from(at) == at][:1]
    if event.reason == "quota":
        quota = cluster.plan.quota or {}
        evicts = quota.get("policy") == EVICTION
        return [] if evicts else [f"{len(offsets)} entries are evicted without a quota"]
    before_ms = cluster.clock_ms() + cluster.fastest_ms - cluster.plan.ttl_s * 1000
    return [f"{at} expires too early" for at in offsets if publish_time(log[at]) > before_ms][:1]


async def _state(store: MemoryStore, key: ActorKey, machine: Machine[Any]) -> Any:
    """What a journal adds up to, from its first event on."""
    state = machine.initial()
    async for record in replay(store, key.text()):
        machine.evolve(state, decode(record.event))
    return state


async def _cursor(store: MemoryStore, hand: ActorKey, ref: Any) -> Cursor:
    key = hand.of_subscription(ref.name, ref.incarnation)
    if key.text() not in await store.list_journals():
        return Cursor(ref.start_offset)
    state = await _state(store, key, SubscriptionMachine())
    return state.cursor if state.created else Cursor(ref.start_offset)


@dataclass
class Excuses:
    """What needn't come: of a subscription's topic, the messages that it was never to get, or no
    longer; of a topic, the places that were trimmed."""

    messages: dict[tuple[str, str], set[str]]
    places: dict[str, set[tuple[int, int]]]


async def find_excuses(disk: SimDisk, keys: list[ActorKey]) -> Excuses:
    """Collect them from the journals of the partitions ``keys`` and their subscriptions."""
    store, found = HistoryStore(disk), Excuses(defaultdict(set), {})
    for key in keys:
        topic = str(key.topic_name)
        log: list[list[str]] = []
        places: list[tuple[int, int]] = []
        trimmed: set[int] = set()
        starts: dict[str, tuple[int, int]] = {}
        async for record in replay(store, key.text()):
            event = decode(record.event)
            if record.blob is not None and record.position is not None:
                log.append(contents_of(record.blob))
                places.append(tuple(record.position))
            elif isinstance(event, EntriesTrimmed):
                trimmed.update(ledger.ledger_id for ledger in event.ledgers)
            elif isinstance(event, SubscriptionCreated):
                starts[event.name] = (event.incarnation, event.start_offset)
        found.places[topic] = {place for place in places if place[0] in trimmed}
        for name, (incarnation, start) in starts.items():
            excused = set(range(start))
            excused |= await _expired(store, key.of_subscription(name, incarnation))
            messages = found.messages[name, topic]
            messages.update(text for at in excused for text in log[at])
    return found


async def _expired(store: MemoryStore, key: ActorKey) -> set[int]:
    expired: set[int] = set()
    try:
        await load_manifest(store, key.text())
    except NotStored:
        return expired
    async for record in replay(store, key.text()):
        event = decode(record.event)
        if isinstance(event, EntriesExpired):
            for first, end in unpack_ranges(event.ranges):
                expired.update(range(first, end))
    return expired
