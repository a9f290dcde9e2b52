"""Actors as Ray actors: named, detached, always restarted, created on first use.

The Ray class is thin. It recovers its actor at the first request for its address, so an actor that
isn't used after a restart costs nothing. It serves, passivates and reports. Messages don't pass
through Ray: they use the actor's own sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import ray
import ray.util
from ray.exceptions import RayActorError, RayError, RayTaskError

from velaray.actors.machine import Reason
from velaray.actors.runtime import Stopped
from velaray.events.backoff import Backoff
from velaray.events.ids import ActorKey, ActorKind
from velaray.journal.errors import StorageFull
from velaray.journal.objects.sealing import AskOwner
from velaray.topology.actor_system import (
    Activation,
    ActorBase,
    ActorSystem,
    Address,
    MakeActor,
    Unreachable,
    check_survey,
    start_actor,
    whole,
)
from velaray.topology.config import ClusterConfig
from velaray.topology.host import WRITERS
from velaray.topology.logs import log_end
from velaray.topology.messages import ReplyT, Request, method_of
from velaray.topology.metrics import Sample
from velaray.topology.ownership import DueChecks, check_ownership
from velaray.topology.ray_nodes import actor_resources
from velaray.topology.ray_process import (
    BACKGROUND_NICENESS,
    collect_garbage_rarely,
    name_process,
)
from velaray.topology.rpc import RemoteError, reason_of
from velaray.topology.sent_config import SentConfig, sent
from velaray.topology.stores import store_of
from velaray.wire.allocation import keep_freed_memory

logger = logging.getLogger("velaray")

_WATCH_S = 1.0
_SURVEYED_AT_ONCE = 16
_FIRST_ASK_AGAIN_S = 0.1
_LONGEST_ASK_AGAIN_S = 1.0


class RayActorSystem(ActorSystem):
    """Resolves actors through Ray; one per process."""

    def __init__(
        self, config: ClusterConfig, make_actor: MakeActor, ask_owner: AskOwner | None = None
    ) -> None:
        """``make_actor`` must be a module's function: Ray sends its name to the actors'
        processes."""
        writers = WRITERS if config.hosts else 1
        super().__init__(config, store_of(config, writers, ask_owner))
        self._make_actor = make_actor

    async def address(self, key: ActorKey) -> Address:
        """Activate the actor and return its address."""
        with ray_errors(key):
            handle = activate(key, self.config, self._make_actor)
            return Address(*await first_answer(handle.address.remote))

    async def dismiss(self, key: ActorKey) -> None:
        """Make the actor finish and exit, if there is one."""
        try:
            handle = ray.get_actor(key.text(), self.config.ray_namespace)
            await handle.retire.remote(force=True)
        except (ValueError, RayActorError):
            return  # it doesn't run, as requested

    async def survey(
        self,
        request: type[Request[ReplyT]],
        timeout_s: float,
        keep: Callable[[ReplyT], ReplyT] = whole,
    ) -> dict[ActorKey, ReplyT | None]:
        """Ask the named actors of the namespace; creates none and looks up each once."""
        keys = await asyncio.to_thread(named_actors, self.config)
        places = asyncio.Semaphore(_SURVEYED_AT_ONCE)

        async def ask(key: ActorKey) -> Any:
            async with places:
                with contextlib.suppress(ValueError, RayError, TimeoutError):  # it exited, or hangs
                    async with asyncio.timeout(timeout_s):
                        name, namespace = key.text(), self.config.ray_namespace
                        handle = await asyncio.to_thread(ray.get_actor, name, namespace)
                        answer = await handle.call_if_started.remote(method_of(request))
                        return None if answer is None else keep(answer)
                return None

        return dict(zip(keys, await asyncio.gather(*map(ask, keys)), strict=True))

    def fatal(self, actor: Activation, error: BaseException) -> None:
        """End this process: Ray restarts the actor, which recovers from its journal."""
        self.exit(actor.key, error)

    def exit(self, key: ActorKey, error: BaseException) -> None:
        """End this process because of its actor."""
        log_end(key, error)
        os._exit(1)


@contextlib.contextmanager
def ray_errors(key: ActorKey) -> Iterator[None]:
    """Turn Ray's errors while an actor is activated into those of `ActorSystem.address`."""
    try:
        yield
    except RayActorError as error:
        raise Unreachable(f"{key} is restarting") from error
    except RayTaskError as error:
        if isinstance(error.cause, RemoteError):
            raise error.cause from error
        if isinstance(error.cause, StorageFull):
            raise RemoteError(Reason.STORAGE_FULL, error.cause.told) from error
        raise Unreachable(f"{key}: {reason_of(error.cause)}") from error
    except RayError as error:
        raise Unreachable(f"{key}: {error}") from error


async def first_answer(ask: Callable[[], Any]) -> Any:
    """Repeat a call until it is answered; the first answer counts.

    When an actor's process dies, Ray fails a call under way only two seconds later, long after it
    has restarted the actor. A later call is answered as soon as the actor is back. Waits between
    calls grow up to a second. If the first calls that end
    have failed, raises the error of one of them.
    """
    backoff = Backoff(_FIRST_ASK_AGAIN_S, _LONGEST_ASK_AGAIN_S)
    asked: set[asyncio.Future[Any]] = set()
    try:
        while True:
            asked.add(asyncio.ensure_future(ask()))
            done, _ = await asyncio.wait(
                asked, timeout=backoff.delay(), return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                failed = [call for call in done if call.exception() is not None]
                return (done.difference(failed) or done).pop().result()
    finally:
        for call in asked:
            call.cancel()


def named_actors(config: ClusterConfig) -> list[ActorKey]:
    """The actors of the cluster that Ray knows, started or not."""
    found = []
    kinds = {kind.value for kind in ActorKind}
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == config.ray_namespace and actor["name"].split("/")[0] in kinds:
            found.append(ActorKey.parse(actor["name"]))
    return found


@cache
def _ray_class() -> Any:
    """Cached: creating the class for every look-up would dominate the cost of a look-up."""
    return ray.remote(VelarayActor)


def activate(key: ActorKey, config: ClusterConfig, make_actor: MakeActor) -> Any:
    """The Ray handle of the actor, which is created unless it exists.

    It is detached, so it outlives its creator. It runs on any node with the cluster's resource; on
    a node without the data it refuses to start (see `velaray.topology.ownership`).
    """
    options = _ray_class().options(
        name=key.text(),
        namespace=config.ray_namespace,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=1000,
        num_cpus=0,
        resources=actor_resources(config),
        scheduling_strategy="SPREAD",
    )
    return options.remote(key.text(), sent(config), make_actor)


def _report_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, Stopped):
        problem = f"{type(error).__name__}: {error}"
        logger.error("metrics are no longer reported to Ray: %s", problem)


class VelarayActor:
    """The Ray class of all velaray actors."""

    def __init__(self, key_text: str, settings: SentConfig, make_actor: MakeActor) -> None:
        self._title = settings.title(key_text)  # Ray asks for it also if the rest fails
        self._key = ActorKey.parse(key_text)
        config = settings.received()
        name_process(self, config, key_text)
        if self._key.kind is ActorKind.GARBAGE_COLLECTOR:
            os.nice(BACKGROUND_NICENESS)  # this thread, and its later child threads
        self._actor_system = RayActorSystem(config, make_actor)
        self._make_actor = make_actor
        self._actor: ActorBase | None = None
        self._starting: asyncio.Task[Address] | None = None
        self._retiring = False
        # An error here makes Ray not restart this actor: its cluster was superseded.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, check_ownership(self._actor_system.store, config)).result()
        # These run from now on even without a request: Ray also restarts actors that aren't used.
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        self._watching.add_done_callback(self._watch_ended)
        if self._key.kind is ActorKind.GARBAGE_COLLECTOR:  # its work comes without requests
            self._beginning = asyncio.get_running_loop().create_task(self._begin())
            self._beginning.add_done_callback(self._watch_ended)

    def __repr__(self) -> str:
        return self._title

    async def _begin(self) -> None:
        """Start without a request. An error ends this process, and Ray restarts it."""
        try:
            await self.address()
        except Unreachable:
            if not self._retiring:
                raise

    async def address(self) -> Address:
        """Recover unless that is done, and return its address.

        Raises `Unreachable` once the actor is leaving, or what its start raised.
        """
        if self._retiring:
            raise Unreachable(f"{self._key} is stopping; the next use starts it again")
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> Address:
        actor = self._make_actor(self._key, self._actor_system)
        started = False
        try:
            address = await start_actor(actor)
            started = True
        finally:
            if not started:
                self._starting = None  # the next request retries
        self._actor = actor
        self._measuring = asyncio.get_running_loop().create_task(self._measure(actor))
        self._measuring.add_done_callback(_report_failure)
        collect_garbage_rarely()
        keep_freed_memory()
        return address

    async def _measure(self, actor: ActorBase) -> None:
        """Report the actor's metrics to Ray at intervals; an error ends the reports, not the
        actor."""
        from velaray.topology.ray_metrics import EXPORT_S, RayMetrics

        telling = RayMetrics()
        while True:
            await asyncio.sleep(EXPORT_S)
            telling.tell([Sample(*each) for each in await actor.call("metrics", {})])

    async def call_if_started(self, method: str) -> Any:
        """The answer to a survey; None if this actor hasn't started. Doesn't start it."""
        check_survey(method)
        return None if self._actor is None else await self._actor.call(method, {})

    async def describe(self) -> dict[str, Any]:
        """The process of the actor, for people and for tests that kill it."""
        context = ray.get_runtime_context()
        return {"key": self._key.text(), "pid": os.getpid(), "node": context.get_node_id()}

    async def retire(self, force: bool = False) -> None:
        """Stop in good order (if idle, or with ``force``); the next call activates the actor
        again."""
        if force and self._starting is not None:
            await asyncio.wait([self._starting])  # else its start would go on after the answer
        if not force and not self._idle():
            return
        self._retiring = True
        if self._actor is not None:
            stopping = asyncio.ensure_future(self._actor.stop())
            await asyncio.wait([stopping])
            error = stopping.exception()
            if error is not None:
                self._actor_system.exit(self._key, error)
        ray.actor.exit_actor()

    def _idle(self) -> bool:
        if self._starting is None:
            return True
        return self._actor is not None and self._actor.idle()

    async def _watch(self) -> None:
        """Passivate after the configured idle time; stop when another cluster owns the data."""
        limit = self._actor_system.config.passivate_after_s
        loop = asyncio.get_running_loop()
        busy_at, checks = loop.time(), DueChecks(self._actor_system.config)
        while True:
            await asyncio.sleep(min(_WATCH_S, limit))
            if checks.is_due(loop.time()):
                await check_ownership(self._actor_system.store, self._actor_system.config)
            if not self._idle():
                busy_at = loop.time()
            elif loop.time() - busy_at >= limit:
                handle = ray.get_actor(self._key.text(), self._actor_system.config.ray_namespace)
                with contextlib.suppress(RayActorError):  # it has exited
                    await handle.retire.remote()
                busy_at = loop.time()

    def _watch_ended(self, task: asyncio.Task[None]) -> None:
        """End the process: the actor is superseded, or the data can't be read."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._actor_system.exit(self._key, error)
