"""Actors as Ray actors: named, detached, restarted for ever, created on first use.

The Ray class is thin. It recovers its body when it is first asked for its address (so an
actor that nobody needs after a restart costs nothing), serves, passivates, and reports.
Messages never pass through Ray: they travel on the body's own sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import ray
import ray.util
from ray.exceptions import RayActorError, RayError, RayTaskError

from velaray.actors.machine import Reason
from velaray.actors.runtime import Stopped
from velaray.client.retry import Backoff
from velaray.events.ids import ActorKey, ActorKind
from velaray.journal.errors import StorageFull
from velaray.journal.files import FileStore
from velaray.topology.actor_system import (
    ActorBase,
    ActorSystem,
    Address,
    MakeActor,
    Unreachable,
)
from velaray.topology.config import ClusterConfig
from velaray.topology.metrics import Sample
from velaray.topology.ownership import check_ownership
from velaray.topology.rpc import RemoteError, reason_of

_WATCH_S = 1.0
_SURVEYED_AT_ONCE = 16
_FIRST_ASK_AGAIN_S = 0.1
_LONGEST_ASK_AGAIN_S = 1.0
_GC_THRESHOLDS = (200_000, 20, 50)
"""Each of some 20,000 entries under way has several objects: there is to be room for all of them.
No message leaves a cycle behind, a client's connection some 70 objects."""
_KEPT_BLOCK = 16 << 20
_COLLECTORS_NICENESS = 10
"""Who deletes gives way to who serves: nobody waits for space as for a receipt."""


class RayActorSystem(ActorSystem):
    """Resolves actors through Ray; one per process."""

    def __init__(self, config: ClusterConfig, make_actor: MakeActor) -> None:
        """``make_actor`` is a function of a module: Ray sends its name to the actors' processes."""
        super().__init__(config, FileStore(config.data_dir, config.number_base))
        self._make_actor = make_actor

    async def address(self, key: ActorKey) -> Address:
        """Activate the actor and return where it listens."""
        try:
            handle = activate(key, self.config, self._make_actor)
            return Address(*await _first_answer(handle.address.remote))
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

    async def dismiss(self, key: ActorKey) -> None:
        """Have the actor finish and exit, if there is one."""
        try:
            handle = ray.get_actor(key.text(), self.config.ray_namespace)
            await handle.retire.remote(force=True)
        except (ValueError, RayActorError):
            return  # it doesn't run, or is gone: what was asked for

    async def survey(self, method: str, timeout_s: float) -> dict[ActorKey, Any]:
        """Ask the named actors of the namespace; none is created or looked for twice."""
        keys = await asyncio.to_thread(named_actors, self.config)
        places = asyncio.Semaphore(_SURVEYED_AT_ONCE)

        async def ask(key: ActorKey) -> Any:
            async with places:
                with contextlib.suppress(ValueError, RayError, TimeoutError):  # it left, or hangs
                    async with asyncio.timeout(timeout_s):
                        name, namespace = key.text(), self.config.ray_namespace
                        handle = await asyncio.to_thread(ray.get_actor, name, namespace)
                        return await handle.call_if_started.remote(method)
                return None

        return dict(zip(keys, await asyncio.gather(*map(ask, keys)), strict=True))

    def fatal(self, key: ActorKey, error: BaseException) -> None:
        """End this process: Ray starts the actor anew, which recovers from its journal."""
        print(f"velaray: {key} stops: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


async def _first_answer(ask: Callable[[], Any]) -> Any:
    """Ask, and ask again while there is no answer; the first one counts.

    Ray lets a call that was under way when the actor's process died fail two seconds later
    at the earliest, long after it has started the actor anew; a later call is answered as
    soon as the actor is back. Waits between calls grow up to a second. Raises what the calls
    that end first raise.
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
    """Made once: a new one, for every look-up, would be much of what a look-up costs."""
    return ray.remote(VelarayActor)


def activate(key: ActorKey, config: ClusterConfig, make_actor: MakeActor) -> Any:
    """The Ray handle of the actor, which is created unless there is one.

    Detached, so that it outlives whoever asked; it runs on any node that may host actors
    (a node that doesn't see the data refuses, see `velaray.topology.ownership`).
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
        scheduling_strategy="SPREAD",
    )
    return options.remote(key.text(), config, make_actor)


def _collect_garbage_rarely() -> None:
    """Spare the collector what stays for the life of the process, and most of its rounds.

    What an actor allocates per message is freed by reference counts; looking for cycles in
    it, at Python's own thresholds, took a third of the time that publishing takes.
    """
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def _report_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, Stopped):
        text = f"velaray: metrics go to Ray no longer: {type(error).__name__}: {error}"
        print(text, file=sys.stderr, flush=True)


def _keep_freed_memory() -> None:
    """Have the C library keep what is freed for what is allocated next.

    It gives the end of its heap back to the system from twice the size on of the largest
    block that was ever freed, at first from 128 KiB on: every entry that is forgotten would be
    given back, and every one that comes be paid for again, page by page.
    """
    bytes(_KEPT_BLOCK)  # cleared by the system: none of its pages is ever touched


class VelarayActor:
    """The Ray body of any velaray actor."""

    def __init__(self, key_text: str, config: ClusterConfig, make_actor: MakeActor) -> None:
        self._key = ActorKey.parse(key_text)
        if self._key.kind is ActorKind.GARBAGE_COLLECTOR:
            os.nice(_COLLECTORS_NICENESS)  # this thread, and those that it starts
        self._actor_system = RayActorSystem(config, make_actor)
        self._make_actor = make_actor
        self._actor: ActorBase | None = None
        self._starting: asyncio.Task[Address] | None = None
        self._retiring = False
        # Refused here, Ray doesn't start this actor again: its cluster is a thing of the past.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, check_ownership(self._actor_system.store, config)).result()
        # From now on, asked for or not: Ray also starts anew what nobody needs any more.
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        self._watching.add_done_callback(self._watch_ended)
        if self._key.kind is ActorKind.GARBAGE_COLLECTOR:  # what it has to do, nobody asks of it
            self._beginning = asyncio.get_running_loop().create_task(self._begin())
            self._beginning.add_done_callback(self._watch_ended)

    async def _begin(self) -> None:
        """Start unasked. What fails ends this process, and Ray starts it anew."""
        try:
            await self.address()
        except Unreachable:
            if not self._retiring:
                raise

    async def address(self) -> tuple[str, int, int]:
        """Recover unless that's done, and return (host, service port, link port).

        Raises `Unreachable` once the actor is leaving, or what its start raised.
        """
        if self._retiring:
            raise Unreachable(f"{self._key} is leaving; the next use starts it again")
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start())
        host, service_port, rpc_port = await asyncio.shield(self._starting)
        return host, service_port, rpc_port

    async def _start(self) -> Address:
        actor = self._make_actor(self._key, self._actor_system)
        started = False
        try:
            address = await actor.start()
            started = True
        finally:
            if not started:
                actor.abort()
                self._starting = None  # the next request tries again
        self._actor = actor
        self._measuring = asyncio.get_running_loop().create_task(self._measure(actor))
        self._measuring.add_done_callback(_report_failure)
        _collect_garbage_rarely()
        _keep_freed_memory()
        return address

    async def _measure(self, actor: ActorBase) -> None:
        """Tell Ray at intervals what the body measures; a failure ends this, not the actor."""
        from velaray.topology.ray_metrics import EXPORT_S, RayMetrics

        telling = RayMetrics()
        while True:
            await asyncio.sleep(EXPORT_S)
            telling.tell([Sample(*each) for each in await actor.call("metrics", {})])

    async def call(self, method: str, args: dict[str, Any] | None = None) -> Any:
        """Answer one call, as over a link; raises `RemoteError` if it's refused.

        Only partitions answer: others tell each other secrets, for which they use links.
        """
        if self._key.kind is not ActorKind.PARTITION:
            raise RemoteError(Reason.NOT_ALLOWED, f"{self._key} answers over links only")
        await self.address()
        assert self._actor is not None
        return await self._actor.call(method, args or {})

    async def call_if_started(self, method: str) -> Any:
        """`call`, but None if this actor hasn't started: asking doesn't start it."""
        return None if self._actor is None else await self._actor.call(method, {})

    async def describe(self) -> dict[str, Any]:
        """Which process this is, for people and for tests that kill it."""
        context = ray.get_runtime_context()
        return {"key": self._key.text(), "pid": os.getpid(), "node": context.get_node_id()}

    async def retire(self, force: bool = False) -> None:
        """Leave in good order (if idle, or ``force``); the next use activates the actor again."""
        if force and self._starting is not None:
            await asyncio.wait([self._starting])  # else it would go on starting after the answer
        if not force and not self._idle():
            return
        self._retiring = True
        if self._actor is not None:
            stopping = asyncio.ensure_future(self._actor.stop())
            await asyncio.wait([stopping])
            error = stopping.exception()
            if error is not None:
                self._actor_system.fatal(self._key, error)
        ray.actor.exit_actor()

    def _idle(self) -> bool:
        if self._starting is None:
            return True
        return self._actor is not None and self._actor.idle()

    async def _watch(self) -> None:
        """Passivate after the configured idle time; stop when another cluster owns the data."""
        limit = self._actor_system.config.passivate_after_s
        loop = asyncio.get_running_loop()
        busy_at = loop.time()
        while True:
            await asyncio.sleep(min(_WATCH_S, limit))
            await check_ownership(self._actor_system.store, self._actor_system.config)
            if not self._idle():
                busy_at = loop.time()
            elif loop.time() - busy_at >= limit:
                handle = ray.get_actor(self._key.text(), self._actor_system.config.ray_namespace)
                with contextlib.suppress(RayActorError):  # it has left
                    await handle.retire.remote()
                busy_at = loop.time()

    def _watch_ended(self, task: asyncio.Task[None]) -> None:
        """Superseded, or the data can't be read: nothing goes on unwatched."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._actor_system.fatal(self._key, error)
