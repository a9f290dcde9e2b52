"""Hosts as Ray actors: each runs many actors of a cluster, in one process and one event loop.

`velaray.topology.ray_directory` decides which host runs an actor. A host that Ray has restarted
activates again what was placed in it, a few actors at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from velaray.events.ids import ActorKey
from velaray.journal.objects.journal_record import Tail
from velaray.journal.objects.ledger_store import ObjectLedgerStore
from velaray.journal.objects.sealing import GONE
from velaray.topology.actor_system import (
    Activation,
    Address,
    MakeActor,
    Unreachable,
    check_survey,
    whole,
)
from velaray.topology.compatibility import VERSION, installed
from velaray.topology.config import ClusterConfig
from velaray.topology.load import SAMPLE_S, BusyRule, LoadMeter, QuietRule
from velaray.topology.logs import log_end, recent_lines
from velaray.topology.loop_lag import LoopLag
from velaray.topology.messages import ReplyT, Request, method_of
from velaray.topology.metrics import Sample
from velaray.topology.ownership import DueChecks, check_ownership
from velaray.topology.placed_actors import Misplaced, PlacedActors
from velaray.topology.placement import BACKGROUND_HOST, group_of, is_own
from velaray.topology.ray_directory import directory_of
from velaray.topology.ray_host_control import RayHostControl
from velaray.topology.ray_nodes import actor_resources, hosts_in_ray
from velaray.topology.ray_owners import RayOwners
from velaray.topology.ray_process import (
    BACKGROUND_NICENESS,
    allow_many_files,
    collect_garbage_rarely,
    name_process,
    resident_bytes,
)
from velaray.topology.ray_system import RayActorSystem, first_answer, ray_errors
from velaray.topology.rpc import reason_of
from velaray.topology.sent_config import SentConfig, sent
from velaray.topology.transient import TRANSIENT_OR_STORE
from velaray.wire.allocation import keep_freed_memory
from velaray.wire.guard import usage_of_process

logger = logging.getLogger("velaray")

WATCH_S = 1.0
_DIRECTORY_S = 10.0
SURVEYED_WITHIN_S = 0.01
"""The time limit of a survey for each actor of a host, besides that of one actor."""


@cache
def _host_class() -> Any:
    return ray.remote(HostActor)


def host_of(name: str, config: ClusterConfig, make_actor: MakeActor, node_id: str = "") -> Any:
    """The Ray handle of a host, which is created unless it exists, if possible on the node
    ``node_id`` ("": on any)."""
    preferred = NodeAffinitySchedulingStrategy(node_id, soft=True) if node_id else "SPREAD"
    options = _host_class().options(
        name=name,
        namespace=config.ray_namespace,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=1000,
        num_cpus=0,
        resources=actor_resources(config),
        scheduling_strategy=preferred,
    )
    return options.remote(name, sent(config), make_actor)


def make_actor_system(config: ClusterConfig, make_actor: MakeActor) -> RayActorSystem:
    """The actor system of a process that runs no actors, by the cluster's placement."""
    kind = SharedActorSystem if config.hosts else RayActorSystem
    return kind(config, make_actor)


class _RayDirectory:
    """The directory as a Ray actor."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config

    async def place(self, key: ActorKey) -> str:
        """Where the directory places an actor now. Raises `Unreachable` if it doesn't answer."""
        try:
            async with asyncio.timeout(_DIRECTORY_S):
                return str(await directory_of(self._config).place.remote(key.text()))
        except TimeoutError as error:
            problem = f"{key}: the placement directory doesn't answer within {_DIRECTORY_S:g} s"
            raise Unreachable(problem) from error

    def released(self, host: str, key: ActorKey) -> None:
        """Note that a host has passivated an actor."""
        directory_of(self._config).released.remote(host, key.text())

    async def placed_in(self, host: str) -> list[ActorKey]:
        """The actors of a host."""
        return [*map(ActorKey.parse, await directory_of(self._config).placed_in.remote(host))]


class _RayHosts:
    """The hosts as Ray actors."""

    def __init__(self, config: ClusterConfig, make_actor: MakeActor) -> None:
        self._config = config
        self._make_actor = make_actor

    async def address(self, host: str, key: ActorKey) -> Address:
        """Have a host start an actor unless it runs. Raises Ray's errors, and `Misplaced`."""
        handle = host_of(host, self._config, self._make_actor)
        try:
            return Address(*await first_answer(partial(handle.address.remote, key.text())))
        except RayTaskError as error:
            if isinstance(error.cause, Misplaced):
                raise error.cause from error
            raise


class SharedActorSystem(RayActorSystem):
    """Resolves actors to hosts; one per process."""

    def __init__(self, config: ClusterConfig, make_actor: MakeActor, host: str = "") -> None:
        """``host`` is the name of the host that this process is; "": it is none."""
        super().__init__(config, make_actor, RayOwners(config, host).ask)
        self._directory = _RayDirectory(config)
        self.placed = PlacedActors(
            host,
            lambda key: make_actor(key, self),
            self._directory,
            _RayHosts(config, make_actor),
            self.fatal,
        )
        self.host_control = RayHostControl(config)
        self.isolates = config.own_hosts > 0

    async def address(self, key: ActorKey) -> Address:
        """Activate the actor in its host and return its address."""
        with ray_errors(key):
            return await self.placed.address(key)

    async def dismiss(self, key: ActorKey) -> None:
        """Make the actor finish, if it runs."""
        with contextlib.suppress(ValueError, RayActorError):  # it doesn't run, as requested
            name = await self._directory.place(key)
            host = ray.get_actor(name, self.config.ray_namespace)
            await host.dismiss.remote(key.text())

    async def survey(
        self,
        request: type[Request[ReplyT]],
        timeout_s: float,
        keep: Callable[[ReplyT], ReplyT] = whole,
    ) -> dict[ActorKey, ReplyT | None]:
        """Ask the started actors of every host, all hosts at once."""
        names = await asyncio.to_thread(hosts_in_ray, self.config)
        asked = (self._survey_host(name, method_of(request), timeout_s) for name in names)
        return {
            ActorKey.parse(text): None if answer is None else keep(answer)
            for answers in await asyncio.gather(*asked)
            for text, answer in answers.items()
        }

    async def _survey_host(self, name: str, method: str, timeout_s: float) -> dict[str, Any]:
        """The answers of a host's actors; none if it is away or hangs.

        A host that tells its actors in time has time for each of them.
        """
        with contextlib.suppress(ValueError, RayError, TimeoutError):
            handle = await asyncio.to_thread(ray.get_actor, name, self.config.ray_namespace)
            async with asyncio.timeout(timeout_s):
                keys = await handle.keys.remote()
            async with asyncio.timeout(timeout_s + len(keys) * SURVEYED_WITHIN_S):
                answers: dict[str, Any] = await handle.call_started.remote(method, timeout_s)
                return answers
        return {}

    def fatal(self, actor: Activation, error: BaseException) -> None:
        """End an actor and no other; the next use recovers it."""
        log_end(actor.key, error)
        self.placed.hosted.fail(actor)


class HostActor:
    """The Ray class of hosts."""

    def __init__(self, name: str, settings: SentConfig, make_actor: MakeActor) -> None:
        self._title = settings.title(name)  # Ray asks for it also if the rest fails
        config = settings.received()
        name_process(self, config, name)
        if name == BACKGROUND_HOST:
            os.nice(BACKGROUND_NICENESS)  # this thread, and its later child threads
        self._name = name
        self._config = config
        self._make_actor = make_actor
        self._system = SharedActorSystem(config, make_actor, name)
        self._placed = self._system.placed
        self._hosted = self._placed.hosted
        self._retiring = False
        # An error here makes Ray not restart this host: its cluster was superseded.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, check_ownership(self._system.store, config)).result()
        keep_freed_memory()
        allow_many_files()
        loop = asyncio.get_running_loop()
        self._began_s = time.monotonic()
        self._lag = LoopLag()
        work = (self._watch(), self._measure(), self._balance(), self._lag.measure())
        self._tasks = [loop.create_task(each) for each in work]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)
        self._recovering = loop.create_task(self._recover())
        self._recovering.add_done_callback(self._task_ended)

    def __repr__(self) -> str:
        return self._title

    # -- actors --------------------------------------------------------------------

    async def address(self, key_text: str) -> Address:
        """Start the actor unless it runs, and return its address.

        Raises `Unreachable` once the host is stopping, `Misplaced` if it is another host's actor,
        or what the actor's start raised.
        """
        if self._retiring:
            raise Unreachable(f"{self._name} is stopping; the next use starts it again")
        return await self._placed.start(ActorKey.parse(key_text))

    async def dismiss(self, key_text: str) -> None:
        """Stop an actor in good order; the next use activates it again."""
        await self._placed.passivate(ActorKey.parse(key_text))

    async def call_started(self, method: str, timeout_s: float) -> dict[str, Any]:
        """The answers of all started actors to a survey; None where one has no answer in time."""
        check_survey(method)
        answers = await self._hosted.answers(method, timeout_s)
        return {key.text(): answer for key, answer in answers.items()}

    async def release_journal(self, journal: str, tail: tuple[str, int, int, int]) -> int:
        """Release a journal in an object store that another host has taken; see
        `ObjectLedgerStore.release_to_successor`."""
        store = self._system.store
        if not isinstance(store, ObjectLedgerStore):
            return GONE
        return await store.release_to_successor(journal, Tail(*tail))

    def keys(self) -> list[str]:
        """The actors that run here."""
        return [key.text() for key in self._hosted.actors]

    async def describe(self) -> dict[str, Any]:
        """The process and its actors, for people and for tests that kill it."""
        context = ray.get_runtime_context()
        return {
            "key": self._name,
            "pid": os.getpid(),
            "node": context.get_node_id(),
            "actors": self.keys(),
            "memory": resident_bytes(),
            "cpu_s": time.process_time(),
            "lag_s": self._lag.longest(),
            "version": VERSION,
            "connections": usage_of_process(),
            "restarted_s": (
                time.monotonic() - self._began_s
                if context.was_current_actor_reconstructed
                else None
            ),
        }

    async def log_lines(self) -> list[str]:
        """The last lines that the process has written to its log, oldest first."""
        return recent_lines()

    async def installed(self) -> tuple[str, int]:
        """The version and the protocol number that a restart of this host would run.

        Raises `OSError` or `TimeoutError` if the installed version can't be loaded.
        """
        found = await installed()
        return found.version, found.protocol

    # -- life ----------------------------------------------------------------------

    async def hand_over(self, group: str) -> None:
        """Stop the actors of a group that the directory has placed in another host."""
        facts = {"topic": group} if "://" in group else {"actor": group}
        logger.info(
            "%s leaves %s: it starts elsewhere at its next use", group, self._name, extra=facts
        )
        await self._placed.hand_over(group)

    async def stop_kind(self, kind: str) -> None:
        """Stop all actors of a kind in good order."""
        keys = [key for key in self._hosted.actors if key.kind.value == kind]
        await asyncio.gather(*map(self._placed.passivate, keys))

    async def retire(self, force: bool = False) -> None:
        """Stop what still runs, and exit."""
        self._retiring = True
        for key in list(self._hosted.actors):
            await self._placed.passivate(key)
        ray.actor.exit_actor()

    async def _recover(self) -> None:
        """Activate again what was placed here before this process started: it may have work."""
        await self._placed.recover()
        collect_garbage_rarely()

    async def _watch(self) -> None:
        """Passivate actors after the configured idle time; stop when another cluster owns the
        data."""
        limit, checks = self._config.passivate_after_s, DueChecks(self._config)
        while True:
            await asyncio.sleep(min(WATCH_S, limit))
            if checks.is_due(asyncio.get_running_loop().time()):
                await check_ownership(self._system.store, self._config)
            await self._placed.passivate_idle(limit)

    async def _balance(self) -> None:
        """Move a topic that is too busy for this host to a host of its own, or one that has become
        quiet in its own host back to a shared one."""
        if not self._config.own_hosts or self._name == BACKGROUND_HOST:
            return
        meter = LoadMeter(self._hosted)
        rule = QuietRule() if is_own(self._name) else BusyRule()
        while True:
            await asyncio.sleep(SAMPLE_S)
            isolated = {group_of(key) for key, actor in self._hosted if actor.isolated()}
            group = rule.chosen(meter.sample(time.monotonic(), time.process_time()))
            # A later sample tries again.
            with contextlib.suppress(RayError, *TRANSIENT_OR_STORE):
                for each in () if is_own(self._name) else isolated:
                    await self._relieve(each, isolated=True)
                if group and group not in isolated:
                    await self._relieve(group, isolated=False)

    async def _relieve(self, group: str, isolated: bool) -> None:
        directory = directory_of(self._config)
        to = await directory.relief.remote(group, isolated)
        if not to:
            return
        host = host_of(to, self._config, self._make_actor)
        await host.keys.remote()  # a new process serves when it has started
        if await directory.relieve.remote(group, to, isolated):
            logger.info("%s moves from %s to %s", group, self._name, to, extra={"topic": group})
            await self._placed.hand_over(group)

    async def _measure(self) -> None:
        """Report the actors' metrics to Ray at intervals."""
        from velaray.topology.ray_metrics import EXPORT_S, RayMetrics

        telling = RayMetrics()
        while True:
            await asyncio.sleep(EXPORT_S)
            answers = await self.call_started("metrics", EXPORT_S)
            telling.tell(_samples(answers.values()))

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """End the process: the cluster is superseded, or the data can't be read."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            problem = f"{type(error).__name__}: {reason_of(error)}"
            logger.error("%s stops: %s", self._name, problem)
            os._exit(1)


def _samples(answers: Iterable[list[Any] | None]) -> Iterable[Sample]:
    for answer in answers:
        for each in answer or ():
            yield Sample(*each)
