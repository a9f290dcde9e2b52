"""One run of a seed: a cluster, clients, a storm of faults, calm, judgement."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import velaray.aio.batcher
import velaray.aio.pool
from tests.sim.checkers import Evidence, judge
from tests.sim.cluster import EPOCH_MS, SimCluster
from tests.sim.faults import Fault, carry_out, make_faults
from tests.sim.history import History
from tests.sim.loop import Deadlock, Node, OutOfSteps, SimLoop, context_of
from tests.sim.shadow import watch_journals
from tests.sim.stored import audit, read_log
from tests.sim.tap import TappedConnection
from tests.sim.workload import ConsumerScript, Consuming, ProducerScript, Producing, Shared
from velaray.aio import Client
from velaray.enums import ConsumerType
from velaray.events.ids import ActorKey, ActorKind
from velaray.journal.errors import JournalError
from velaray.journal.memory import MemoryStore
from velaray.topology.brain import Brain
from velaray.topology.fabric import Unreachable
from velaray.topology.hosted import CONFIRM_S
from velaray.topology.links import RemoteError

MAX_TURNS = 400_000
CALM_S = 240.0
"""In so many virtual seconds without faults everything must be drained."""

_BROKEN = (Deadlock, OutOfSteps, Unreachable, RemoteError, JournalError, KeyError, ValueError)
"""What the run itself meets when a cluster is broken: it stands still, or can't be read."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended; sound if there are no ``problems``."""

    seed: int
    faults: list[Fault]
    problems: list[str]
    history: History
    turns: int


def run(seed: int, fault_count: int | None = None) -> Outcome:
    """Run ``seed`` with its faults, or with the first ``fault_count`` of them."""
    faults = make_faults(seed)[:fault_count]
    with _quiet():
        return _run(seed, faults)


def _run(seed: int, faults: list[Fault]) -> Outcome:
    loop = SimLoop(MAX_TURNS)
    history = History(loop.time)
    problems: list[str] = []
    with _simulated(loop, seed, history):
        world = World(loop, seed, faults, history)
        loop.set_exception_handler(world.cluster.note_loop_error)
        try:
            loop.run_until_complete(world.live())
        except _BROKEN as error:
            problems.append(f"{type(error).__name__}: {error}")
        problems += world.problems()
        left = loop.turns_left
        loop.finish()
    return Outcome(seed, faults, problems, history, MAX_TURNS - left)


@contextmanager
def _quiet() -> Iterator[None]:
    """No garbage collection during a run, and no noise of what a run leaves behind."""
    hook = sys.unraisablehook
    gc.collect()
    gc.disable()
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
            sys.unraisablehook = lambda _: None
            gc.collect()
    finally:
        sys.unraisablehook = hook
        logging.disable(logging.NOTSET)
        gc.enable()


@contextmanager
def _simulated(loop: SimLoop, seed: int, history: History) -> Iterator[None]:
    """Put virtual time, seeded chance and taps where the product takes the real ones."""
    replaced: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, value: Any) -> None:
        replaced.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    pump = Brain._pump

    def checked_pump(brain: Brain) -> None:
        pump(brain)
        # Else an acknowledgement or a reset may be half-way through, or a full disk made the
        # state fall back: then this brain is about to be replaced.
        runtime = brain._runtime
        current = runtime.state.cursor is brain._cursor
        if current and runtime._settled() and not brain._resetting:
            brain._dispatcher.check()

    TappedConnection.history, TappedConnection.opened = history, 0
    state = random.getstate()
    random.seed(seed)
    replace(velaray.aio.batcher, "time", lambda: EPOCH_MS / 1000 + loop.time())
    replace(velaray.aio.pool, "Connection", TappedConnection)
    replace(Brain, "_pump", checked_pump)
    watch_journals(replace)
    try:
        yield
    finally:
        random.setstate(state)
        for owner, name, value in reversed(replaced):
            setattr(owner, name, value)


class World:
    """Everything of one run."""

    def __init__(self, loop: SimLoop, seed: int, faults: list[Fault], history: History) -> None:
        self.cluster = SimCluster(loop, seed, history)
        self._loop = loop
        self._seed = seed
        self._faults = faults
        self._history = history
        self._rng = Random(f"{seed}/workload")
        self._logs: dict[str, dict[tuple[int, int], list[str]]] = {}
        self._problems: list[str] = []
        self._stage = "starting"
        self._clients = 0

    def problems(self) -> list[str]:
        """What was wrong with the run."""
        found = self.cluster.failures + self._problems
        if self._stage != "over":
            found.append(f"the run got stuck while {self._stage}")
        if self._logs:
            found += judge(Evidence(self._history, self._logs))
        return found

    def _client(self) -> tuple[Client, Node]:
        self._clients += 1
        return Client("pulsar://127.0.0.1:6650"), Node(f"client {self._clients}")

    async def live(self) -> None:
        """The whole run."""
        cluster, history = self.cluster, self._history
        await cluster.open_door()
        await cluster.admin.call(
            ActorKey.catalog(),
            "bootstrap",
            {"cluster": "sim", "service_url": "pulsar://x:6650", "admin_url": "http://x:8080"},
        )
        door = self._loop.create_task(cluster.keep_door_open())
        shared = Shared(history)
        consumers, producers = self._cast(shared)
        self._stage = "in the storm"
        await carry_out(cluster, self._faults, self._seed)
        await asyncio.sleep(2.0)
        history.add("calm")
        cluster.heal()
        shared.draining.set()
        self._stage = "waiting for the producers"
        self._deadline = self._loop.time() + CALM_S
        if not await self._all_done(producers):
            return
        self._stage = "draining"
        if not await self._drained():
            return
        shared.over.set()
        self._stage = "closing the consumers"
        if not await self._all_done(consumers):
            return
        door.cancel()
        await self._post_mortem()
        self._stage = "over"

    def _cast(self, shared: Shared) -> tuple[list[Any], list[Any]]:
        """Start the clients' parts."""
        rng = self._rng
        topics = [f"persistent://public/default/t{n}" for n in range(rng.randint(1, 2))]
        consumers, producers = [], []
        number = 0
        for topic in topics:
            for subscription in range(rng.randint(1, 2)):
                kind = rng.choice(
                    [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.Failover]
                )
                for _ in range(1 if kind is ConsumerType.Exclusive else rng.randint(1, 3)):
                    number += 1
                    plan = _consuming(
                        rng, f"c{number}", topic, f"{topic[-2:]}-s{subscription}", kind
                    )
                    client, node = self._client()
                    script = ConsumerScript(client, plan, shared, Random(rng.random()))
                    consumers.append(self._start(script.run(), node))
        for topic in topics:
            for _ in range(rng.randint(1, 2)):
                number += 1
                plan = _producing(rng, f"p{number}", topic)
                client, node = self._client()
                script = ProducerScript(client, plan, shared, Random(rng.random()))
                producers.append(self._start(script.run(), node))
        return consumers, producers

    def _start(self, work: Any, node: Node) -> Any:
        return self._loop.create_task(work, context=context_of(node))

    async def _all_done(self, tasks: list[Any]) -> bool:
        left = self._deadline - self._loop.time()
        done, pending = await asyncio.wait(tasks, timeout=max(left, 0.1))
        for task in tasks:
            if task in done and task.exception() is not None:
                self._problems.append(f"a client failed: {task.exception()!r}")
        return not pending

    async def _drained(self) -> bool:
        backlogs: list[Any] = []
        times = 0
        while self._loop.time() < self._deadline:
            try:
                backlogs = [
                    backlog for key in self._partitions() for backlog in await self._of(key)
                ]
            except (RemoteError, Unreachable) as error:
                backlogs = [str(error)]  # while the last command of a full disk is tried, say
            if not any(backlogs):
                times += 1
                if times == 2:
                    return True
                # An activation that was superseded may have answered; it doesn't for long.
                await asyncio.sleep(CONFIRM_S + 1.0)
                continue
            times = 0
            await asyncio.sleep(1.0)
        self._problems.append(f"backlogs at the end: {backlogs}")
        return False

    async def _of(self, key: ActorKey) -> list[int]:
        stats = await self.cluster.admin.call(key, "stats")
        for name, found in stats["subscriptions"].items():
            self._check_active(f"{key} {name}", found, max(key.partition, 0))
        return [found["backlog"] for found in stats["subscriptions"].values()]

    def _check_active(self, where: str, found: dict[str, Any], partition: int) -> None:
        """Of Failover consumers the one is active that Pulsar's rule says."""
        consumers = sorted(found["consumers"], key=lambda known: known["name"])
        if found["type"] != "FAILOVER":
            return
        active = [at for at, known in enumerate(consumers) if known["active"]]
        if active != [partition % len(consumers)]:
            self._problems.append(f"{where}: of {len(consumers)} consumers {active} are active")

    def _partitions(self) -> list[ActorKey]:
        names = sorted(self.cluster.disk._journals)
        keys = [ActorKey.parse(name) for name in names]
        return [key for key in keys if key.kind is ActorKind.PARTITION]

    async def _post_mortem(self) -> None:
        """Live against replay; then restart everything and look at the disk again."""
        self._stage = "comparing replay and live"
        cluster = self.cluster
        self._problems += [text for text in await audit(cluster) if "not listed" not in text]
        self._stage = "restarting everything"
        for node in cluster.live():
            cluster.kill(node)
        store = MemoryStore(cluster.disk)
        for name in await store.list_journals():
            await cluster.admin.reach(ActorKey.parse(name))
        self._problems += await audit(cluster)
        for key in self._partitions():
            self._logs[str(key.topic_name)] = await read_log(store, key)


def _consuming(
    rng: Random, name: str, topic: str, subscription: str, kind: ConsumerType
) -> Consuming:
    shared = kind is ConsumerType.Shared
    cumulative = not shared and rng.random() < 0.5
    # After a request for redelivery what was under way comes first, as with clients of Pulsar
    # that know no consumer epochs: who acknowledges cumulatively then would skip messages.
    again = 0 if cumulative else 1
    return Consuming(
        name=name,
        topic=topic,
        subscription=subscription,
        kind=kind,
        queue=rng.choice([1, 3, 20, 1000]),
        batch_index=rng.random() < 0.5,
        nack=again * rng.choice([0, 50]),
        keep=rng.choice([0, 50]),
        redeliver=again * rng.choice([0, 20]),
        leave=rng.choice([0, 20]),
        seek=0 if shared else rng.choice([0, 0, 20]),
        cumulative=cumulative,
    )


def _producing(rng: Random, name: str, topic: str) -> Producing:
    return Producing(
        name=name,
        topic=topic,
        count=rng.randint(10, 60),
        window=rng.choice([1, 4, 16]),
        batching=rng.random() < 0.5,
        timeout_ms=rng.choice([0, 30_000]),
    )
