"""Visibility of other clusters' transactions here, for crashes between any two steps and a loss of
their cluster at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from random import Random
from typing import Any

import pytest

from tests.sim.loop import SimLoop
from tests.sim.network import Network
from tests.support.by_name import call_by_name
from tests.support.local_cluster import REPLICATION_SECRET
from tests.topology.geo import Client, proved
from velaray.actors.partition.remote_transactions import remote_id
from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Stopped
from velaray.broker.partition.partition_actor import PartitionActor
from velaray.events.ids import ActorKey, Position, TopicName, TransactionId
from velaray.geo.actor_kinds import make_actor
from velaray.geo.replication.remote_transactions import RemoteTransactionSide
from velaray.journal.memory import MemoryDisk, MemoryStore, Step
from velaray.topology.actor_system import Unreachable
from velaray.topology.config import ClusterConfig
from velaray.topology.in_process import InProcessActorSystem
from velaray.topology.messages import Request, method_of
from velaray.topology.rpc import RemoteError
from velaray.topology.transient import TRANSIENT
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Send
from velaray.wire.messages import build_entry
from velaray.wire.replication import SOURCE_POSITION, Marker, replicator_name
from velaray.wire.replication_pb2 import TransactionComplete, TransactionsComplete

LIMIT_S = 600.0
MOMENT_S = 0.001
LATENCY_S = 0.002
MAX_TURNS = 1_000_000
LEDGER = 1 << 52 | 5 << 24
A, B, C = (TransactionId(5, sequence) for sequence in (1, 2, 3))
P, Q, R = (f"persistent://public/default/{letter}" for letter in "pqr")
LOGS: dict[str, list[TransactionId | None]] = {
    P: [A, None, B, A, None],
    Q: [B, A, None],
    R: [None, C, A, C],
}
"""What the other cluster has of each topic: of A in all, of B in two, of C in one."""
STEPS = frozenset((Step.WRITE, Step.RETURN))


def of(transaction: TransactionId) -> list[tuple[str, Position]]:
    """Where all entries of a transaction are in the other cluster."""
    return [
        (topic, Position(LEDGER, at))
        for topic, log in LOGS.items()
        for at, each in enumerate(log)
        if each == transaction
    ]


def entry(topic: str, at: int) -> bytes:
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=at, publish_time=1, replicated_from="east"
    )
    metadata.properties.add(key=SOURCE_POSITION, value=f"{LEDGER}:{at}")
    transaction = LOGS[topic][at]
    if transaction is not None:
        metadata.txnid_most_bits, metadata.txnid_least_bits = transaction
    return bytes(build_entry(metadata, f"{topic[-1]}{at}".encode()))


def completions(topic: str) -> bytes:
    log = LOGS[topic]
    last = {each: at for at, each in enumerate(log) if each is not None}
    complete = [
        TransactionComplete(
            coordinator=each.coordinator,
            sequence=each.sequence,
            last_ledger=LEDGER,
            last_entry=at,
            topics=sorted({where for where, _ in of(each)}),
        )
        for each, at in sorted(last.items(), key=lambda item: item[1])
    ]
    marker = TransactionsComplete(transactions=complete)
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        replicated_from="east",
        marker_type=Marker.TRANSACTIONS_COMPLETE,
    )
    return bytes(build_entry(metadata, marker.SerializeToString()))


class Gone(Exception):
    """The partition was killed."""


class West:
    """The cluster that it comes to, with a hook at every step."""

    def __init__(self) -> None:
        self.step: Callable[[str], Awaitable[None]] = self._nothing
        names = {"name": "west", "replication_secret": REPLICATION_SECRET}
        config = ClusterConfig("nowhere", 1, b"key", **names, cluster_number=2, deleters=0)
        store = MemoryStore(MemoryDisk(), hook=self._on_disk, number_base=config.number_base)
        self.actor_system = InProcessActorSystem(config, store, make_actor)
        self.keys: dict[str, ActorKey] = {}
        self.lost = asyncio.Event()
        self.lives = 0

    async def _nothing(self, where: str) -> None: ...

    async def _on_disk(self, step: Step, journal: str) -> None:
        if step in STEPS and journal.startswith("partition/"):
            await self.step(f"{step} {journal}")

    async def start(self) -> None:
        names = {"cluster": "west", "service_url": "pulsar://h:1", "admin_url": "http://h:2"}
        await call_by_name(self.actor_system, ActorKey.catalog(), "bootstrap", names)
        for topic in LOGS:
            found = await call_by_name(
                self.actor_system, ActorKey.catalog(), "ensure_topic", {"topic": topic}
            )
            self.keys[topic] = ActorKey.of_partition(TopicName.parse(topic), found["incarnation"])
            await self.partition(topic)

    async def partition(self, topic: str) -> PartitionActor:
        while True:
            try:
                await self.actor_system.address(self.keys[topic])
                actor = self.actor_system.actors[self.keys[topic]]
            except (Unreachable, RemoteError, Stopped, KeyError):
                await asyncio.sleep(MOMENT_S)  # it was killed meanwhile
                continue
            assert isinstance(actor, PartitionActor)
            return actor

    def kill(self, topic: str) -> None:
        self.actor_system.kill(self.keys[topic])

    async def call(self, topic: str, method: str, **args: Any) -> Any:
        while True:
            try:
                return await call_by_name(self.actor_system, self.keys[topic], method, args)
            except TRANSIENT:
                await asyncio.sleep(MOMENT_S)

    # -- what the other cluster's replicators do ---------------------------------------

    async def bring(self, topic: str) -> None:
        """All of a topic, again until it is confirmed, or the other cluster is lost."""
        while not self.lost.is_set():
            try:
                await self._bring(topic)
                return
            except (Gone, Stopped):
                await asyncio.sleep(MOMENT_S)

    async def _bring(self, topic: str) -> None:
        actor = await self.partition(topic)
        client = Client(actor)
        try:
            await self._send_all(topic, actor, client)
        finally:
            client.leave()  # whatever is under way

    async def _send_all(self, topic: str, actor: PartitionActor, client: Client) -> None:
        self.lives += 1
        client.say(
            pb.CommandProducer(
                topic=topic,
                producer_id=1,
                request_id=1,
                producer_name=replicator_name("east", "west"),
                epoch=self.lives,
                metadata=proved("east", "west"),
            )
        )
        await self._answer(topic, actor, client, pb.CommandProducerSuccess)
        sent = [entry(topic, at) for at in range(len(LOGS[topic]))]
        for number, each in enumerate([*sent, completions(topic)]):
            client.say(Send(1, number), each)
            answer = await self._answer(topic, actor, client, pb.CommandSendReceipt)
            assert answer.sequence_id == number

    async def _answer(self, topic: str, actor: PartitionActor, client: Client, kind: type) -> Any:
        while True:
            while client.sent:
                message = client.sent.pop(0)
                if isinstance(message, kind):
                    return message
                if isinstance(message, pb.CommandSendError | pb.CommandError):
                    raise Gone
            if self.actor_system.actors.get(self.keys[topic]) is not actor or self.lost.is_set():
                raise Gone
            await asyncio.sleep(MOMENT_S)

    async def bring_all(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*map(self.bring, LOGS))

    async def give_up(self) -> None:
        """As when the other cluster is lost."""
        async with asyncio.timeout(LIMIT_S):
            for topic in LOGS:
                while await self.call(topic, "settle_foreign"):
                    await asyncio.sleep(MOMENT_S)
            for topic in LOGS:
                await self.call(topic, "give_up_foreign", cluster="east")

    # -- what can be seen --------------------------------------------------------------

    def shown(self, topic: str) -> Iterator[Position]:
        """Which entries of the other cluster a consumer gets now, as far as anybody runs."""
        actor = self.actor_system.actors.get(self.keys[topic])
        if not isinstance(actor, PartitionActor) or not hasattr(actor.log, "cache"):
            return
        state = actor.runtime.state
        for at in range(len(LOGS[topic])):
            offset = self._offset(state, at)
            if offset is None or offset >= actor.log.visibility.readable_end:
                continue
            if offset not in state.transactions.hidden:
                yield Position(LEDGER, at)

    @staticmethod
    def _offset(state: PartitionState, at: int) -> int | None:
        origin = state.origins.by_cluster.get("east")
        return None if origin is None else origin.offset_of(Position(LEDGER, at))

    def came(self) -> set[TransactionId]:
        """The transactions with data here, at any running actor."""
        return {
            transaction
            for transaction in (A, B, C)
            for topic, where in of(transaction)
            if isinstance(actor := self.actor_system.actors[self.keys[topic]], PartitionActor)
            and self._offset(actor.runtime.state, where.entry_id) is not None
        }

    def check(self) -> None:
        """What of a transaction is shown anywhere is stored everywhere, and given up nowhere."""
        for transaction in (A, B, C):
            places = of(transaction)
            if not any(where in self.shown(topic) for topic, where in places):
                continue
            for topic, where in places:
                actor = self.actor_system.actors.get(self.keys[topic])
                if not isinstance(actor, PartitionActor) or not hasattr(actor.log, "cache"):
                    continue
                state = actor.runtime.state
                offset = self._offset(state, where.entry_id)
                assert offset is not None, f"part of {transaction} isn't here"
                assert offset not in state.transactions.hidden, f"part of {transaction} is hidden"
                assert remote_id("east", transaction) not in state.arriving.given_up

    async def whole(self) -> dict[TransactionId, bool]:
        """Which transactions are shown; it fails if one is in part."""
        for topic in LOGS:
            await self.partition(topic)
        found = {}
        for transaction in (A, B, C):
            seen = [where in self.shown(topic) for topic, where in of(transaction)]
            assert all(seen) or not any(seen), f"part of {transaction} is shown"
            found[transaction] = all(seen)
        return found

    async def settled(self) -> None:
        """Until nothing is left to be done, and nothing is kept."""
        async with asyncio.timeout(LIMIT_S):
            for topic in LOGS:
                while True:
                    arriving = (await self.partition(topic)).runtime.state.arriving
                    if not (arriving.complete or arriving.kept or arriving.given_up):
                        break
                    await asyncio.sleep(MOMENT_S)
        for topic in LOGS:
            actor = await self.partition(topic)
            assert not actor.runtime.state.transactions.ongoing
            plain = [Position(LEDGER, at) for at, each in enumerate(LOGS[topic]) if each is None]
            assert set(plain) <= set(self.shown(topic))


Scenario = Callable[[West], Awaitable[None]]


@pytest.fixture(autouse=True)
def steps_between_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What partitions tell each other are steps too."""
    ask = RemoteTransactionSide._request

    async def stepwise(self: RemoteTransactionSide, topic: str, request: Request[Any]) -> Any:
        store = self._partition.actor_system.store
        assert isinstance(store, MemoryStore)
        west: West = store.west  # type: ignore[attr-defined]
        await west.step(f"before {method_of(type(request))} of {topic}")
        found = await ask(self, topic, request)
        await west.step(f"after {method_of(type(request))} of {topic}")
        return found

    monkeypatch.setattr(RemoteTransactionSide, "_request", stepwise)


def run(scenario: Scenario, seed: int = 1) -> None:
    """In virtual time, over a simulated network: the same seed, the same order of everything."""
    loop = SimLoop(MAX_TURNS)
    loop.network = Network(loop, Random(seed), LATENCY_S)

    async def main() -> None:
        west = West()
        west.actor_system.store.west = west  # type: ignore[attr-defined]
        west.actor_system.clock_ms = lambda: 1_000_000 + int(1000 * loop.time())  # type: ignore[method-assign]
        await west.start()
        await scenario(west)

    try:
        loop.run_until_complete(main())
    finally:
        loop.finish()


def at_step(west: West, number: int, act: Callable[[], None]) -> list[str]:
    """Have something happen at this step, and all be well at each; the steps so far."""
    steps: list[str] = []

    async def step(where: str) -> None:
        steps.append(where)
        west.check()
        if len(steps) == number:
            act()
            await asyncio.sleep(MOMENT_S)

    west.step = step
    return steps


def steps_in_all() -> int:
    """How many there are if nothing happens."""
    counted: list[int] = []

    async def scenario(west: West) -> None:
        steps = at_step(west, 0, lambda: None)
        await west.bring_all()
        await west.settled()
        assert all((await west.whole()).values())
        counted.append(len(steps))

    run(scenario)
    return counted[0]


@pytest.mark.parametrize("victim", [P, Q, R], ids="pqr")
def test_after_a_crash_between_any_two_steps_the_transaction_is_released(victim: str) -> None:
    total = steps_in_all()
    assert total > 20

    for number in range(1, total + 1):

        async def scenario(west: West, number: int = number) -> None:
            at_step(west, number, lambda: west.kill(victim))
            await west.bring_all()
            await west.settled()
            assert all((await west.whole()).values())

        run(scenario)


async def lost_and_found(west: West) -> None:
    """The other cluster is lost at some moment, and found again: what was shown stays so, what had
    come and wasn't never is, and what hadn't come does."""
    await west.bring_all()
    await west.give_up()
    shown, came = await west.whole(), west.came()
    west.lost.clear()
    await west.bring_all()
    await west.settled()
    for transaction, is_shown in (await west.whole()).items():
        assert is_shown is (shown[transaction] or transaction not in came)
        if not is_shown:
            for topic, where in of(transaction):
                state = (await west.partition(topic)).runtime.state
                assert west._offset(state, where.entry_id) in state.transactions.hidden


def test_the_loss_of_the_source_at_any_step_shows_all_of_a_transaction_or_nothing() -> None:
    outcomes = set()
    for number in range(1, steps_in_all() + 1):

        async def scenario(west: West, number: int = number) -> None:
            at_step(west, number, west.lost.set)
            await lost_and_found(west)
            outcomes.add(tuple((await west.whole()).values()))

        run(scenario)
    assert {(True, True, True), (False, False, False)} < outcomes


@pytest.mark.parametrize(("victim", "later"), [(P, 2), (P, 9), (Q, 5), (R, 1)])
def test_a_crash_during_a_loss_shows_all_of_a_transaction_or_nothing(
    victim: str, later: int
) -> None:
    for number in range(1, steps_in_all() + 1, 2):

        async def scenario(west: West, number: int = number) -> None:
            steps = at_step(west, number, west.lost.set)
            step = west.step

            async def and_crash(where: str) -> None:
                await step(where)
                if len(steps) == number + later:
                    west.kill(victim)
                    await asyncio.sleep(MOMENT_S)

            west.step = and_crash
            await lost_and_found(west)

        run(scenario)
