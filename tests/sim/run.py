"""One run of a seed: a cluster, clients, a storm of faults, calm, judgement."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from aiohttp import web_app

import velaray.client.batcher
import velaray.client.connection
import velaray.client.core
import velaray.client.dead_letters
import velaray.client.pool
import velaray.client.reader
from tests.sim import compacting, schema_checkers
from tests.sim.administration import PREFIX
from tests.sim.attic import HistoryStore
from tests.sim.cast import Cast, make_cast
from tests.sim.checkers import CHECKERS, Evidence, judge
from tests.sim.clients import ClientProcess, Script
from tests.sim.cluster import ADMIN_PORT, EPOCH_MS, SimCluster
from tests.sim.compacting import Compacting, make_compacting, newest_of
from tests.sim.dead_letter_checkers import KEEPER, is_dead_letter_topic
from tests.sim.deletions import deleted_in_the_end
from tests.sim.deliveries import watch_deliveries
from tests.sim.faults import Fault, carry_out, make_faults
from tests.sim.history import History
from tests.sim.http import ask
from tests.sim.key_shared_checkers import KEY_SHARED_CHECKERS
from tests.sim.loop import Deadlock, OutOfSteps, SimLoop
from tests.sim.lost_consumers import watch_losses
from tests.sim.moments import watch_moments
from tests.sim.readers import ReaderScript
from tests.sim.schema_checkers import SchemaEvidence
from tests.sim.schemas import has_schemas, make_schema_cast
from tests.sim.shadow import watch_journals, watch_machines
from tests.sim.staff_checkers import STAFF_CHECKERS
from tests.sim.stored import audit, expected_journals, read_log
from tests.sim.tap import TappedConnection
from tests.sim.transaction_cast import COORDINATORS, TransactionCast, make_transaction_cast
from tests.sim.transaction_checkers import judge_transactions
from tests.sim.transaction_evidence import (
    TransactionEvidence,
    collect,
    hidden_places,
    unfinished,
)
from tests.sim.trimming import EVICTION, Excuses, find_excuses, shorten_units
from tests.sim.uncounted import watch_counts
from tests.sim.workload import PATTERN, Shared
from tests.support.by_name import call_by_name
from velaray.actors.catalog.machine import SYSTEM_TENANT
from velaray.actors.machine import Reason
from velaray.actors.sets import acknowledged_ranges
from velaray.broker import journaled_actor
from velaray.broker.coordinator.coordinators import ensure_coordinators
from velaray.broker.garbage_collection import ledger_keeper
from velaray.broker.journaled_actor import CONFIRM_S
from velaray.broker.subscription.acknowledgements import Acknowledgements
from velaray.broker.subscription.cursor_moves import CursorMoves
from velaray.broker.subscription.dispatch_state import DispatchState
from velaray.client.enums import ConsumerType
from velaray.events.ids import ActorKey, ActorKind
from velaray.journal import journal
from velaray.journal.errors import JournalError
from velaray.topology.actor_system import Unreachable
from velaray.topology.rpc import RemoteError

ALL_CHECKERS = (*CHECKERS, *STAFF_CHECKERS, *KEY_SHARED_CHECKERS)
MAX_TURNS = 400_000
SMALL_SEGMENT, SMALL_BUDGET = 8, 1_000
"""Offsets per segment of a cursor, and bytes of memory for them, so that most segments are cold."""
MOVES = ("skip_to", "reset", "expire")
ACKNOWLEDGEMENTS = ("pass_over", "take_progress", "ack_in_transaction", "end_transaction")
"""Requests after which dispatch follows the cursor only when the decision is durable."""
CALM_S = 240.0
"""The virtual seconds without faults within which everything must be drained."""

BROKEN = (
    *(Deadlock, OutOfSteps, Unreachable, RemoteError, JournalError),
    *(AssertionError, KeyError, ValueError),
)
"""What the run itself meets when a cluster is broken: it stands still, or can't be read."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended; sound if there are no ``problems``."""

    seed: int
    faults: Sequence[object]
    problems: list[str]
    history: History
    turns: int
    relaxed: bool = False
    geo: bool = False
    hosts: bool = False
    rates: bool = False
    store: bool = False
    machines: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    """What is counted over a campaign."""


def run(seed: int, fault_count: int | None = None, relaxed: bool = False) -> Outcome:
    """Run ``seed`` with its faults, or with the first ``fault_count`` of them.

    ``relaxed``: partitions are synced on a timer.
    """
    faults = make_faults(seed, relaxed)[:fault_count]
    with quiet():
        return run_world(World, seed, faults, relaxed)


def run_world(kind: type[World], seed: int, faults: list[Fault], relaxed: bool = False) -> Outcome:
    """Run ``seed`` with these faults in a world of this kind, within `quiet`."""
    loop = SimLoop(MAX_TURNS)
    history = History(loop.time)
    problems: list[str] = []
    with simulated(loop, seed, history):
        world = kind(loop, seed, faults, history, relaxed)
        loop.set_exception_handler(world.cluster.note_loop_error)
        try:
            loop.run_until_complete(world.live())
        except BROKEN as error:
            problems.append(f"{type(error).__name__}: {error}")
        problems += world.problems()
        turns = loop.turns
        loop.finish()
    return Outcome(seed, faults, problems, history, turns, relaxed)


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection during a run, and no noise of what a run leaves behind."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    gc.collect()  # classes keep what the last run left until the next one begins
    sys.unraisablehook = hook
    gc.disable()
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
            sys.unraisablehook = lambda _: None
            _forget_applications()
            gc.collect()
    finally:
        sys.unraisablehook = hook
        logging.disable(logging.NOTSET)
        gc.enable()


def _forget_applications() -> None:
    """aiohttp caches the handlers of applications, and through them all of a run's world."""
    for cached in vars(web_app).values():
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


@contextmanager
def simulated(
    loop: SimLoop,
    seed: int,
    history: History,
    connection: type[TappedConnection] = TappedConnection,
) -> Iterator[None]:
    """Put virtual time, seeded chance and taps where the product takes the real ones."""
    replaced: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, value: Any) -> None:
        replaced.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    pump = DispatchState._run_pump
    moving: Counter[DispatchState] = Counter()

    # A request that fails leaves its dispatcher unchecked: its partition is gone, or its disk was
    # full. But a conflict changes nothing.
    def noted(change: Any) -> Any:
        async def changing(part: CursorMoves | Acknowledgements, request: Any) -> Any:
            moving[part._state] += 1
            try:
                found = await change(part, request)
            except RemoteError as error:
                moving[part._state] -= error.kind == Reason.CONFLICT
                raise
            moving[part._state] -= 1
            return found

        return changing

    def checked_pump(state: DispatchState) -> None:
        pump(state)
        # Otherwise an acknowledgement, a reset or a skip may be half-way through, or a full disk
        # made the state fall back: then this dispatcher is about to be replaced.
        runtime = state.runtime
        # While the state falls back, the one to be replaced has what was just dropped.
        current = state.current and not (runtime._rebuilding or state.dispatcher._is_cut_off)
        if current and runtime._settled() and not moving[state]:
            state.dispatcher.check()

    TappedConnection.history, TappedConnection.opened = history, 0
    state = random.getstate()
    random.seed(seed)
    try:
        for module in (velaray.client.batcher, velaray.client.dead_letters):
            replace(module, "time", lambda: EPOCH_MS / 1000 + loop.time())
        replace(velaray.client.pool, "Connection", connection)
        replace(velaray.client.core, "PARTITIONS_UPDATE_SECONDS", 2.0)
        _make_small(replace)
        _fix_clients(replace)
        replace(DispatchState, "_run_pump", checked_pump)
        for name in MOVES:
            replace(CursorMoves, name, noted(getattr(CursorMoves, name)))
        for name in ACKNOWLEDGEMENTS:
            replace(Acknowledgements, name, noted(getattr(Acknowledgements, name)))
        watch_journals(replace, history)
        watch_machines(replace)
        shorten_units(replace)
        watch_deliveries(replace, history)
        watch_counts(replace, history)
        watch_losses(replace, history)
        watch_moments(replace)
        yield
    finally:
        random.setstate(state)
        for owner, name, value in reversed(replaced):
            setattr(owner, name, value)


def _fix_clients(replace: Callable[[Any, str, Any], None]) -> None:
    """Number the readers' subscriptions, and give clients a fixed version: journals hold it,
    compressed, so another one would give other histories."""
    names = itertools.count(1)
    replace(velaray.client.reader, "token_hex", lambda size: f"{next(names):0{2 * size}x}")
    replace(velaray.client.connection, "_client_version", lambda: "velaray-0.1.0")


def _make_small(replace: Callable[[Any, str, Any], None]) -> None:
    """Small enough that a cursor has many segments, of which some are only on disk."""
    replace(acknowledged_ranges, "SEGMENT", SMALL_SEGMENT)
    replace(acknowledged_ranges, "BUDGET", SMALL_BUDGET)
    replace(journal, "MAX_REFERRED", 3)
    replace(journaled_actor, "HISTORY_BYTES", 6_000)
    replace(ledger_keeper, "ROLL_BYTES", 2_000)


class World:
    """Everything of one run."""

    def __init__(
        self, loop: SimLoop, seed: int, faults: list[Fault], history: History, relaxed: bool
    ) -> None:
        self.cluster = self._make_cluster(loop, seed, history, relaxed)
        self._loop = loop
        self._seed = seed
        self._faults = faults
        self._history = history
        self._logs: dict[str, dict[tuple[int, int], list[str]]] = {}
        self._excuses = Excuses({}, {})
        self._problems: list[str] = []
        self._stage = "starting"
        self._reading: list[tuple[str, ReaderScript]] = []
        self._subscriptions: dict[str, set[str]] = {}
        self._compacting: Compacting | None = None
        self._transactions: TransactionCast | None = None
        self._past: TransactionEvidence | None = None
        self._schemas: SchemaEvidence | None = None

    def _make_cluster(
        self, loop: SimLoop, seed: int, history: History, relaxed: bool
    ) -> SimCluster:
        return SimCluster(loop, seed, history, relaxed)

    async def _carry_out(self) -> None:
        await carry_out(self.cluster, self._faults, self._seed)

    def problems(self) -> list[str]:
        """The faults that the run found."""
        found = self.cluster.failures + self._problems
        if self._stage != "over":
            found.append(f"the run got stuck while {self._stage}")
        if self._logs:
            letters = {
                topic: log for topic, log in self._logs.items() if is_dead_letter_topic(topic)
            }
            logs = {topic: log for topic, log in self._logs.items() if topic not in letters}
            excuses = self._excuses
            past = self._past
            evidence = Evidence(
                *(self._history, logs, excuses.messages, excuses.places, letters),
                hidden={} if past is None else past.hidden(),
            )
            found += judge(evidence, ALL_CHECKERS)
            if past is not None:
                found += judge_transactions(evidence, past)
        if self._schemas is not None:
            found += schema_checkers.judge_schemas(self._schemas)
        return found

    async def live(self) -> None:
        """The whole run."""
        cluster, history = self.cluster, self._history
        await cluster.open_proxy()
        await call_by_name(
            cluster.admin,
            ActorKey.catalog(),
            "bootstrap",
            {"cluster": "sim", "service_url": "pulsar://x:6650", "admin_url": "http://x:8080"},
        )
        proxy = self._loop.create_task(cluster.keep_proxy_open())
        shared = Shared(history)
        cast = await self._prepared(shared)
        consumers = self._begin({**cast.consumers, **self._readers(cast)})
        producers = self._begin({**cast.producers, **cast.administrators, **cast.intruders})
        if self._compacting is not None:
            consumers += self._begin(self._compacting.readers)
            producers += self._begin(self._compacting.producers)
        if self._transactions is not None:
            consumers += self._begin(self._transactions.consumers)
            producers += self._begin(self._transactions.producers)
        producers += self._begin(make_schema_cast(self._seed, shared))
        self._stage = "in the storm"
        await self._carry_out()
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
        self._stage = "waiting for the transactions"
        if not await self._all_ended():
            return
        proxy.cancel()
        await self._post_mortem()
        self._stage = "over"

    async def _prepared(self, shared: Shared) -> Cast:
        cast = make_cast(self._seed, shared)
        await self._make_topics(cast.partitions)
        await self._set_policies(cast)
        self._compacting = make_compacting(self._seed, shared)
        if self._compacting is not None:
            await compacting.prepare()
        for topic, limits in cast.limits.items():
            await self._limit(topic, *limits)
        self._subscriptions = cast.subscriptions
        self._reading = [(topic, reader) for topic, reader in cast.readers.values()]
        if not self.cluster.relaxed:
            self._transactions = make_transaction_cast(self._seed, shared)
        if self._transactions is not None:
            await ensure_coordinators(self.cluster.admin, COORDINATORS)
            await self._make_topics(self._transactions.partitions)
            self._subscriptions |= self._transactions.subscriptions
            self._reading += self._transactions.readers
        return cast

    async def _make_topics(self, partitions: Mapping[str, int]) -> None:
        """Create the partitioned topics; clients create the others."""
        for topic, count in partitions.items():
            if count:
                path = f"{PREFIX}/persistent/{topic}/partitions"
                status, answer = await ask(ADMIN_PORT, "PUT", path, count)
                assert status == 204, answer

    async def _set_policies(self, cast: Cast) -> None:
        plan = self.cluster.plan
        letters = Random(f"{self._seed}/letters")
        topics = [script.plan.topic for script in cast.consumers.values()]
        plain = all(isinstance(topic, str) and not topic.startswith(PATTERN) for topic in topics)
        if letters.random() < 0.3 and plain and plan is None:
            for script in cast.consumers.values():
                script.poisoned = script.plan.kind is ConsumerType.Shared
            most = {"maxRedeliverCount": letters.randint(1, 3), "initialSubscriptionName": KEEPER}
            path = f"{PREFIX}/namespaces/public/default/policies/deadLetter"
            status, answer = await ask(ADMIN_PORT, "PUT", path, most)
            assert status == 204, answer
        for name, value in () if plan is None else plan.policies():
            held = name == "backlogQuota" and value["destination_storage"]["policy"] != EVICTION
            if held and "a0" in cast.administrators:
                continue  # a subscription without a consumer would stop the producers
            path = f"{PREFIX}/namespaces/public/default/policies/{name}"
            status, answer = await ask(ADMIN_PORT, "PUT", path, value)
            assert status == 204, answer

    async def _limit(self, topic: str, consumer: int, subscription: int) -> None:
        """How much consumers may hold un-acknowledged."""
        call, catalog = partial(call_by_name, self.cluster.admin), ActorKey.catalog()
        named = {"topic": f"persistent://{topic}"}
        await call(catalog, "ensure_topic", named)
        for name, value in (
            ("maxUnackedMessagesPerConsumer", consumer),
            ("maxUnackedMessagesPerSubscription", subscription),
        ):
            policy = {**named, "name": name, "value": b"%d" % value}
            await call(catalog, "set_policy", policy)
        self._history.add("limits", topic=topic, consumer=consumer, subscription=subscription)

    def _readers(self, cast: Cast) -> dict[str, Script]:
        return {name: reader for name, (_, reader) in cast.readers.items()}

    def _begin(self, scripts: Mapping[str, Script]) -> list[Any]:
        processes = [
            ClientProcess(self.cluster, name, script, Random(f"{self._seed}/{name}"))
            for name, script in scripts.items()
        ]
        return [self._loop.create_task(process.run()) for process in processes]

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
                keys = await self._partitions()
                backlogs = [backlog for key in keys for backlog in await self._of(key)]
            except (RemoteError, Unreachable) as error:
                backlogs = [str(error)]  # while the last command of a full disk is tried, say
            if not any(backlogs) and await self._all_read():
                times += 1
                if times == 2:
                    return True
                # An activation that was superseded may have answered; it doesn't for long.
                await asyncio.sleep(CONFIRM_S + 1.0)
                continue
            times = 0
            await asyncio.sleep(1.0)
        if not await self._settled():
            self._problems.append("a compacted reader lacks the newest value of a key")
        self._problems.append(f"backlogs at the end: {backlogs}")
        return False

    async def _all_ended(self) -> bool:
        """Until no transaction is open or ending, by the coordinators' journals."""
        left: list[str] = []
        while self._transactions is not None and self._loop.time() < self._deadline:
            left = await unfinished(self.cluster.disk, COORDINATORS)
            if not left:
                return True
            await asyncio.sleep(1.0)
        if left:
            self._problems.append(f"transactions at the end: {left}")
        return not left

    async def _of(self, key: ActorKey) -> list[int]:
        stats = await call_by_name(self.cluster.admin, key, "stats")
        self._history.add("log", topic=str(key.topic_name), terminated=stats["terminated"])
        for name, found in stats["subscriptions"].items():
            self._check_active(f"{key} {name}", found, max(key.partition, 0))
        topic = str(key.topic_name.topic).removeprefix("persistent://")
        missing = self._subscriptions.get(topic, set()) - stats["subscriptions"].keys()
        return [
            *(stats["entries"] for _ in missing),  # its consumers will begin at the beginning
            *(
                found["backlog"]
                for name, found in stats["subscriptions"].items()
                if found["durable"] and not name.startswith("x")  # an administrator's
            ),
        ]

    async def _all_read(self) -> bool:
        """Whether the readers have come to the end."""
        for topic, reader in self._reading:
            whole: set[str] = set()
            for key in await self._partitions():
                if str(key.topic_name.topic).endswith(topic):
                    store = HistoryStore(self.cluster.disk)
                    log = await read_log(store, key)
                    gone = (await self._find_excuses([key])).places[str(key.topic_name)]
                    gone |= await hidden_places(store, key)
                    kept = [contents for place, contents in log.items() if place not in gone]
                    whole.update(content for contents in kept for content in contents)
            if not whole <= reader.seen:
                return False
        return await self._settled()

    async def _settled(self) -> bool:
        """Whether the compacted reader has exactly the newest value of every key."""
        if self._compacting is None:
            return True
        (key,) = [key for key in await self._partitions() if key.topic == "k0"]
        return self._compacting.reader.settled == await newest_of(self.cluster.disk, key)

    async def _find_excuses(self, keys: list[ActorKey]) -> Excuses:
        return await find_excuses(self.cluster.disk, keys)

    def _check_active(self, where: str, found: dict[str, Any], partition: int) -> None:
        """Pulsar's rule decides which Failover consumer is active."""
        consumers = sorted(found["consumers"], key=lambda known: known["name"])
        names = {known["name"] for known in consumers}
        # A client that vanished and came back is there twice for a while. One that is gone may
        # still be the active one.
        twice = len(names) < len(consumers)
        if found["type"] != "FAILOVER" or not names or twice or found["leaving"]:
            return
        active = [at for at, known in enumerate(consumers) if known["active"]]
        if active != [partition % len(consumers)]:
            self._problems.append(f"{where}: of {len(consumers)} consumers {active} are active")

    async def _partitions(self) -> list[ActorKey]:
        """The partitions that have a log, of topics that there are."""
        stored = self.cluster.disk._journals
        names = sorted(name for name in await expected_journals(self.cluster) if name in stored)
        keys = [ActorKey.parse(name) for name in names]
        users = [key for key in keys if key.tenant != SYSTEM_TENANT]
        return [key for key in users if key.kind is ActorKind.PARTITION]

    async def _post_mortem(self) -> None:
        """Live against replay; then restart everything and look at the disk again."""
        self._stage = "comparing replay and live"
        cluster = self.cluster
        self._problems += await audit(cluster)
        self._stage = "restarting everything"
        for node in cluster.live():
            cluster.kill(node)
        for name in sorted(await expected_journals(cluster)):
            await cluster.admin.reach(ActorKey.parse(name))
        await asyncio.sleep(5.0)  # what is left to do after recovery is done by then
        await cluster.open_proxy()  # garbage collectors reach their topics through it
        await cluster.admin.reach(ActorKey.of_garbage_collector(0))
        self._problems += await audit(cluster) + await deleted_in_the_end(cluster, CALM_S)
        for key in await self._partitions():
            if not key.topic.startswith("sc"):
                self._logs[str(key.topic_name)] = await read_log(HistoryStore(cluster.disk), key)
        if has_schemas(self._seed):
            expected = await expected_journals(cluster)
            self._schemas = await schema_checkers.collect(cluster.disk, expected, self._history)
        if self._transactions is not None:
            self._past = await collect(cluster.disk, await expected_journals(cluster))
        if cluster.plan is not None:
            self._excuses = await self._find_excuses(await self._partitions())
