"""Two clusters that replicate to each other, as machines: a subscription gets the same progress in
both, for exactly the messages that both have, when parts are late, lost or repeated."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from velaray.actors.machine import Machine, Refusal
from velaray.actors.partition.machine import (
    Duplicate,
    PartitionMachine,
    Publish,
    Published,
    Replicated,
)
from velaray.actors.subscription.cursor import mask_to_words
from velaray.actors.subscription.machine import Ack, AckBefore, Create, SubscriptionMachine
from velaray.actors.subscription.progress_exports import Exports, touched_by, window
from velaray.actors.subscription.progress_translation import here
from velaray.actors.subscription.redelivery import NoteDeliveries
from velaray.actors.subscription.remote_progress import TakeProgress
from velaray.actors.testing import Contents
from velaray.broker.subscription.progress_form import read_part
from velaray.events.events_pb2 import LedgerOpened
from velaray.events.ids import Position
from velaray.geo.replication import progress_export

BATCH = 3
ALL = (1 << BATCH) - 1
STEPS = 220


class Actor:
    """A machine and its state, which may be made anew from a snapshot at any moment."""

    def __init__(self, machine: Machine[Any]) -> None:
        self.machine = machine
        self.state = machine.initial()
        self.on_applied: Callable[[Sequence[Any], Any], None] = lambda events, reply: None

    def do(self, command: Any) -> Any:
        decision = self.machine.decide(self.state, command, 0)
        assert not isinstance(decision.reply, Refusal), decision.reply
        for event in decision.events:
            self.machine.evolve(self.state, event)
        self.on_applied(decision.events, decision.reply)
        self.machine.check(self.state)
        return decision.reply

    def restart(self) -> None:
        self.state = self.machine.restore(Contents().bytes_of(self.machine.snapshot(self.state)))


@dataclass
class Message:
    """An entry of three messages, and what the subscription of each cluster has of it."""

    origin: str
    stays: bool
    position: Position
    left: dict[str, int] = field(default_factory=lambda: {"east": ALL, "west": ALL})
    times: int = 0


class Cluster:
    """One partition with one subscription; ``log`` is what the partition holds."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.partition = Actor(PartitionMachine())
        self.subscription = Actor(SubscriptionMachine())
        self.exports = Exports("0")
        self.subscription.on_applied = self._applied
        self.subscription.do(Create(0))
        self.log: list[Message] = []
        self.ledger_id = number << 52 | 5 << 24
        self.roll()
        self.sent = 0  # so many offsets of its log were confirmed by the other one
        self.token: Any = None
        self.activations = 0

    def _applied(self, events: Sequence[Any], reply: Any) -> None:
        self.exports.touch(touched_by(events, reply))

    @property
    def end(self) -> int:
        return len(self.log)

    def roll(self) -> None:
        self.ledger_id += 1
        opened = LedgerOpened(ledger_id=self.ledger_id, epoch=1)
        self.partition.machine.evolve(self.partition.state, opened)

    def publish(self, *, stays: bool) -> None:
        reply = self.partition.do(Publish("p", self.end, 0, BATCH, b"", False))
        assert isinstance(reply, Published)
        self.log.append(Message(self.name, stays, reply.position))

    def store(self, message: Message) -> None:
        """As its replicator sends it."""
        stamp = Replicated(message.origin, message.position)
        reply = self.partition.do(Publish("p", 0, 0, BATCH, b"", False, replicated=stamp))
        assert isinstance(reply, Duplicate) == any(each is message for each in self.log)
        if not isinstance(reply, Duplicate):
            self.log.append(message)

    # -- as who tells

    def exported(self) -> list[bytes]:
        """The next parts for the other cluster; the token goes on if the answer gets there."""
        part = self.exports.next("other", self.token)
        if not part.news:
            return []
        places = progress_export.Places(self.partition.state, self.name, None)
        state = self.subscription.state
        found = window(state.cursor, state.deliveries, part.places, part.at, places.known_from)
        parts = progress_export.Parts("s", {})
        told = {
            "begins": part.at == 0,
            "mark": found.mark,
            "before": found.before,
            "ranges": found.ranges,
            "partial": [(at, mask_to_words(mask)) for at, mask in found.partial],
            "counts": found.counts,
        }
        progress_export._add(parts, told, places)
        self.next_token = self.exports.token(part, found.at)
        return parts.take()

    def restart(self) -> None:
        """The subscription's process dies: what it remembered of exports is gone."""
        self.partition.restart()
        self.subscription.restart()
        self.activations += 1
        self.exports = Exports(str(self.activations))

    # -- as the receiver

    def take(self, raw: bytes) -> None:
        told = read_part("other", raw).origins
        found = here(self.partition.state, self.name, told)
        self._take(found, {})

    def settle(self) -> None:
        """Before anybody gets what came."""
        came = {name: each.last for name, each in self.partition.state.origins.by_cluster.items()}
        for name, waiting in list(self.subscription.state.remote.waiting.items()):
            newest = came.get(name, Position(-1, -1))
            if waiting.concerns(newest):
                found = here(self.partition.state, self.name, {name: waiting.due(newest)})
                self._take(found, {name: newest})

    def _take(self, found: Any, came: dict[str, Position]) -> None:
        command = TakeProgress("other", found.end_offset, 0, found.ranges, found.partial)
        command.counts, command.ahead, command.came = found.counts, found.ahead, came
        self.subscription.do(command)

    def left(self, offset: int) -> int:
        cursor = self.subscription.state.cursor
        if cursor.is_acked(offset):
            return 0
        mask = cursor.ack_set(offset)
        return ALL if mask is None else mask & ALL


class World:
    """East's consumers acknowledge; west's subscription has no consumers of its own, unless both
    are used."""

    def __init__(self, seed: int, *, both: bool) -> None:
        self.random = random.Random(seed)
        self.east, self.west = Cluster("east", 1), Cluster("west", 2)
        self.both = both
        self.network: list[tuple[Cluster, bytes]] = []

    def other(self, cluster: Cluster) -> Cluster:
        return self.west if cluster is self.east else self.east

    def step(self) -> None:
        roll, side = self.random.randrange(20), self.random.choice((self.east, self.west))
        if roll < 5:
            side.publish(stays=self.random.random() < 0.2)
        elif roll < 8:
            self.replicate(side, self.random.randrange(4))
        elif roll < 12:
            self.acknowledge(side if self.both else self.east)
        elif roll < 14:
            self.tell(side)
        elif roll < 17:
            self.deliver()
        elif roll == 17:
            side.settle()
        elif roll == 18 and self.random.random() < 0.3:
            side.restart()
        elif roll == 19:
            side.roll()
        self.check()

    def replicate(self, source: Cluster, count: int) -> None:
        """Some more, perhaps after a restart that sends some again."""
        if self.random.random() < 0.2:
            source.sent = max(source.sent - self.random.randrange(6), 0)
        for message in source.log[source.sent : source.sent + count]:
            if message.origin == source.name and not message.stays:
                self.other(source).store(message)
        source.sent = min(source.sent + count, source.end)

    def acknowledge(self, side: Cluster) -> None:
        side.settle()  # it is delivered before
        if not side.end:
            return
        first = self.random.randrange(side.end)
        kind = self.random.randrange(6)
        if kind == 0 and self.random.random() < 0.3:
            side.subscription.do(AckBefore(side.end, first))
        elif kind < 3:
            end = min(first + self.random.choice((1, 1, 1, 4)), side.end)
            side.subscription.do(Ack(side.end, [(first, end)]))
        elif kind < 5:
            left = self.random.randrange(1 << BATCH)
            side.subscription.do(Ack(side.end, (), [(first, left)]))
        else:
            side.subscription.do(NoteDeliveries([(first, first + 1)]))
            side.exports.touch([(first, first + 1)])
        for offset, message in enumerate(side.log):
            message.left[side.name] = side.left(offset)

    def tell(self, side: Cluster) -> None:
        """Ask what is new; parts may come late or twice, and the answer get lost."""
        parts = side.exported()
        self.network += [(self.other(side), part) for part in parts]
        if parts and self.random.random() < 0.7:
            side.token = side.next_token

    def deliver(self) -> None:
        if not self.network:
            return
        number = self.random.randrange(len(self.network))
        target, part = self.network[number]
        target.take(part)
        if self.random.random() < 0.7:
            del self.network[number]

    def check(self) -> None:
        """No cluster has more than was acknowledged in some cluster."""
        for side in (self.east, self.west):
            for offset, message in enumerate(side.log):
                left = side.left(offset)
                here_alone = message.stays
                told = message.left[side.name] if here_alone else self._left(message)
                assert left & told == told, (side.name, offset, message)

    def _left(self, message: Message) -> int:
        return message.left["east"] & message.left["west"]

    def finish(self) -> None:
        """All that is under way arrives, in some order."""
        for side in (self.east, self.west):
            side.publish(stays=False)  # what waits for a message that stays is over with the next
            side.sent = 0
            while side.sent < side.end:
                self.replicate(side, 5)
        for _ in range(2):
            for side in (self.east, self.west):
                while parts := side.exported():
                    self.network += [(self.other(side), part) for part in parts]
                    side.token = side.next_token
            self.random.shuffle(self.network)
            for target, part in self.network:
                target.take(part)
            self.network.clear()
        self.east.settle()
        self.west.settle()
        self.check()


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_both_clusters_acknowledge_the_same_common_messages(seed: int, both: bool) -> None:
    world = World(seed, both=both)
    for _ in range(STEPS):
        world.step()
    world.finish()
    for side in (world.east, world.west):
        other = world.other(side)
        offsets = {id(message): offset for offset, message in enumerate(other.log)}
        for offset, message in enumerate(side.log):
            there = offsets.get(id(message))
            if message.stays:
                assert there is None
                assert side.left(offset) == message.left[side.name], (side.name, message)
                continue
            assert there is not None, message
            assert side.left(offset) == other.left(there) == world._left(message)
            if side.left(offset):
                times = [
                    each.subscription.state.deliveries.get(at)
                    for each, at in ((side, offset), (other, there))
                ]
                assert times[0] == times[1]
        assert not side.subscription.state.remote.waiting
