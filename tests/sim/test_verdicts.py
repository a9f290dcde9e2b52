"""One small transaction, with a crash at every step of every journal that takes part in its end.

The first answer to the commit is lost as well. After every crash, all answers give one verdict,
and either everything in the transaction counts or nothing does (apache/pulsar 19629).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.sim.checkers import Evidence
from tests.sim.cluster import SERVICE_PORT, Activation, SimCluster
from tests.sim.history import History
from tests.sim.loop import Node, SimLoop, context_of
from tests.sim.moments import MOMENTS, Ambush
from tests.sim.run import quiet, simulated
from tests.sim.stored import audit, expected_journals, read_log
from tests.sim.transaction_checkers import judge_transactions
from tests.sim.transaction_evidence import collect, unfinished
from tests.sim.transactions import Transacted
from tests.support.by_name import call_by_name
from velaray.aio import Client
from velaray.broker.coordinator.coordinators import ensure_coordinators
from velaray.client.enums import InitialPosition
from velaray.client.exceptions import Timeout
from velaray.events.ids import ActorKey, ActorKind
from velaray.journal.memory import MemoryStore, Step

SEED = 1
SOURCE, RESULTS = "persistent://public/default/in", "persistent://public/default/out"


@dataclass
class CrashAt:
    """A trap for the nth step that stores of one kind of actor take once it is armed."""

    kind: str
    at: int
    taken: int = 0
    armed: bool = False
    steps: list[str] = field(default_factory=list)

    def matches(self, step: Step, node: Activation) -> bool:
        """Whether this is the step."""
        if not self.armed or node.key is None or node.key.kind.name != self.kind:
            return False
        if node.key.topic and f"persistent://public/default/{node.key.topic}" not in (
            SOURCE,
            RESULTS,
        ):
            return False
        self.taken += 1
        self.steps.append(str(step))
        return self.taken == self.at

    async def spring(self, cluster: SimCluster, node: Activation, journal: str) -> None:
        """Crash."""
        cluster.kill(node)
        await asyncio.Event().wait()


@dataclass
class Seen:
    """What a run showed."""

    steps: int
    verdict: bool
    problems: list[str]


def lived(commit: bool, trap: CrashAt, ambush: Ambush | None = None, early: bool = False) -> Seen:
    """Run the transaction; the trap is armed when it ends, or when it begins (``early``)."""
    loop = SimLoop(200_000)
    history = History(loop.time)
    with quiet(), simulated(loop, SEED, history):
        cluster = SimCluster(loop, SEED, history)
        loop.set_exception_handler(cluster.note_loop_error)
        try:
            return loop.run_until_complete(_lived(cluster, commit, trap, ambush, early))
        finally:
            loop.finish()


async def _lived(
    cluster: SimCluster, commit: bool, trap: Any, ambush: Ambush | None, early: bool
) -> Seen:
    await cluster.open_proxy()
    names = {"cluster": "sim", "service_url": "pulsar://x:6650", "admin_url": "http://x:8080"}
    await call_by_name(cluster.admin, ActorKey.catalog(), "bootstrap", names)
    await ensure_coordinators(cluster.admin, 1)
    cluster.traps.append(trap)
    trap.armed = early
    node = Node("client")
    transacted = Transacted(cluster.history)
    story = _transact(cluster, transacted, commit, trap, ambush)
    verdict = await cluster.loop.create_task(story, context=context_of(node))
    while await unfinished(cluster.disk, 1):
        await asyncio.sleep(0.2)
    problems = list(cluster.failures)
    for live in cluster.live():
        if live.key is not None:
            cluster.kill(live)
    trap.armed = False
    after = _look(cluster, transacted, verdict)
    problems += await cluster.loop.create_task(after, context=context_of(node))
    await asyncio.sleep(1.0)  # what was noted of deliveries is durable by then
    problems += await audit(cluster)
    return Seen(trap.taken, verdict, problems + await _judged(cluster))


async def _transact(
    cluster: SimCluster, transacted: Transacted, commit: bool, trap: Any, ambush: Ambush | None
) -> bool:
    note = cluster.history.add
    client = Client(f"pulsar://127.0.0.1:{SERVICE_PORT}")
    producer = await client.create_producer(SOURCE, producer_name="p")
    note("send", content="p:1", topic=SOURCE, key=None, by_key=False)
    await producer.send(b"p:1")
    consumer = await client.subscribe(SOURCE, "s", initial_position=InitialPosition.Earliest)
    out = await client.create_producer(RESULTS, producer_name="out")
    message = await consumer.receive(timeout_millis=60_000)
    txn = await transacted.begin(client, "client", 100.0)
    note("send", content="out:1", topic=RESULTS, key=None, by_key=False, txn=str(txn.txn_id))
    await out.send(b"out:1", txn=txn)
    await consumer.acknowledge(message, txn=txn)
    trap.armed = True
    lost = Ambush("COORDINATOR", "answering", "lose the answer", 0, 0.0)
    cluster.ambushes += [lost] if ambush is None else [ambush, lost]
    verdict = await transacted.end_for_sure(txn, commit)
    for asked in (commit, not commit, commit):
        await transacted.ask_again(client, txn.txn_id, asked)
    await client.close()
    return verdict


async def _look(cluster: SimCluster, transacted: Transacted, verdict: bool) -> list[str]:
    """The state that a later client sees."""
    client = Client(f"pulsar://127.0.0.1:{SERVICE_PORT}")
    for txn in transacted.asked:
        for asked in (True, False):
            await transacted.ask_again(client, txn, asked)
    answers = [note["done"] for _, _, note in cluster.history.of("txn answered")]
    found = [] if set(answers) == {verdict} else [f"the answers are {answers}"]
    for topic, wanted in ((SOURCE, not verdict), (RESULTS, verdict)):
        consumer = await client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
        try:
            await consumer.receive(timeout_millis=60_000 if wanted else 2_000)
            came = True
        except Timeout:
            came = False
        if came is not wanted:
            found.append(f"of {topic} {'a' if came else 'no'} message came")
    await client.close()
    return found


async def _judged(cluster: SimCluster) -> list[str]:
    store, expected = MemoryStore(cluster.disk), await expected_journals(cluster)
    keys = [ActorKey.parse(name) for name in sorted(expected & set(cluster.disk._journals))]
    logs = {
        str(key.topic_name): await read_log(store, key)
        for key in keys
        if key.kind is ActorKind.PARTITION
    }
    past = await collect(cluster.disk, expected)
    return judge_transactions(Evidence(cluster.history, logs, hidden=past.hidden()), past)


def crashed_everywhere(kind: str, commit: bool, early: bool, every: int = 1) -> int:
    """Run it once for every step, or for one in ``every`` steps; how many there were."""
    whole = lived(commit, CrashAt(kind, 0), early=early)
    assert (whole.problems, whole.verdict) == ([], commit)
    for at in range(1, whole.steps + 1, every):
        seen = lived(commit, CrashAt(kind, at), early=early)
        assert (seen.problems, seen.verdict) == ([], commit), f"a crash at step {at}"
    return whole.steps


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.long), 3])
@pytest.mark.parametrize("commit", [True, False])
def test_a_coordinator_that_crashes_at_any_step_never_changes_an_outcome(
    commit: bool, every: int
) -> None:
    assert crashed_everywhere("COORDINATOR", commit, early=True, every=every) > 30


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("kind", ["PARTITION", "SUBSCRIPTION"])
def test_a_participant_that_crashes_at_any_step_of_an_end_applies_it(
    kind: str, commit: bool
) -> None:
    assert crashed_everywhere(kind, commit, early=False) >= 5


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(
    ("kind", "moment"), [(kind, moment) for kind, moments in MOMENTS.items() for moment in moments]
)
def test_a_crash_at_any_moment_of_an_end_changes_nothing(
    kind: str, moment: str, commit: bool
) -> None:
    for passes in range(2):
        ambush = Ambush(kind, moment, "crash", passes, 0.0)
        seen = lived(commit, CrashAt(kind, 0), ambush)
        assert (seen.problems, seen.verdict) == ([], commit), f"at {moment} number {passes}"
