"""A transform on Ray: its workers, their restarts, and the progress."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from types import TracebackType
from typing import Any, Self

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from rich.live import Live

import velaray
from velaray.client.exceptions import InvalidConfiguration
from velaray.events.backoff import Backoff
from velaray.pipelines.transform import Transform
from velaray.pipelines.transform_backlog import Backlog
from velaray.pipelines.transform_counts import Rate, TransformCounts, TransformProgress
from velaray.pipelines.transform_display import progress_table
from velaray.pipelines.transform_worker import TransformWorker
from velaray.ray_access import connect_ray

logger = logging.getLogger("velaray")

STEP_S = 0.1
REPORT_S = 0.5


class WorkerActor(TransformWorker):
    """A worker as a Ray actor."""

    async def report(self) -> tuple[int, TransformCounts]:
        """The worker's process id and counters."""
        return os.getpid(), self.counts


class Seat:
    """The place of one worker: an actor, which is replaced when it dies."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.pid: int | None = None
        self.ended = False
        self.deaths = 0
        self.error: Exception | None = None
        self._make = make
        self._actor: Any = None
        self._run: Any = None
        self._report: Any = None
        self._report_at = 0.0
        self._start_at = 0.0
        self._backoff = Backoff()
        self._stopping = False
        self._draining = False
        self._former = TransformCounts()
        self._counts = TransformCounts()

    @property
    def counts(self) -> TransformCounts:
        """The counters of its workers, as last reported."""
        return self._former + self._counts

    def stop(self) -> None:
        """Make the worker finish its batch and end."""
        self._stopping = True
        if self._actor is None:
            self.ended = True
        else:
            self._actor.stop.remote()

    def drain(self) -> None:
        """Make the worker end when everything is acknowledged."""
        self._draining = True
        if self._actor is not None:
            self._actor.drain.remote()

    def kill(self) -> None:
        """Kill the worker at once; its transaction ends by its timeout."""
        self._stopping = True
        if self._actor is not None:
            ray.kill(self._actor)

    def step(self) -> None:
        """Check the worker's state and take the next step."""
        now = monotonic()
        if self._actor is None:
            if not self.ended and now >= self._start_at:
                self._start()
            return
        if _ready(self._run):
            self._finish()
        elif self._report is None:
            if now >= self._report_at:
                self._report = self._actor.report.remote()
                self._report_at = now + REPORT_S
        elif _ready(self._report):
            self._read_report()

    def _start(self) -> None:
        self._actor = self._make()
        if self._draining:
            self._actor.drain.remote()
        self._run = self._actor.run.remote()

    def _read_report(self) -> None:
        report, self._report = self._report, None
        try:
            self.pid, counts = ray.get(report)
        except RayError:
            return  # the worker died: its run reports that
        if counts.committed > self._counts.committed:
            self._backoff.reset()
        self._counts = counts

    def _finish(self) -> None:
        run, self._run, self._report = self._run, None, None
        self._actor = self.pid = None
        try:
            self._counts = ray.get(run)
            self.ended = True
        except RayActorError as error:
            self._former, self._counts = self.counts, TransformCounts()
            if self._stopping:
                self.ended = True
                return
            self.deaths += 1
            delay = self._backoff.delay()
            self._start_at = monotonic() + delay
            logger.info("a worker died; another one starts in %.1f s: %s", delay, error)
        except RayTaskError as error:
            self.error, self.ended = error.as_instanceof_cause(), True


def _ready(reference: Any) -> bool:
    return bool(ray.wait([reference], timeout=0)[0])


class TransformRun:
    """Runs a transform with ``workers`` workers on Ray; the constructor starts it.

    Each worker is an actor. A worker that dies, alone or with its node, is replaced, with back-off
    after repeated failures. Its messages go to the other workers at once. Messages that its open
    transaction has acknowledged wait for ``transaction_timeout``. The workers end with this
    process, with `stop`, or with a permanent error. As a context manager it stops at the end of the
    block.

    ``name`` is that of the velaray cluster on this Ray cluster, and ``service_url`` by default its
    URL. ``ray_options`` are the actors' options, such as ``num_cpus``. Connects to Ray if this
    process isn't connected. Raises `InvalidConfiguration` for less than one worker, and
    `RayUnavailable` if there is no Ray or Ray refuses this process.
    """

    def __init__(
        self,
        transform: Transform,
        workers: int = 1,
        *,
        name: str = "standalone",
        service_url: str | None = None,
        ray_options: Mapping[str, Any] | None = None,
    ) -> None:
        _check_workers(workers)
        if not ray.is_initialized():
            connect_ray()
        url = service_url or velaray.service_url(name)
        options = {"scheduling_strategy": "SPREAD", **(ray_options or {})}
        actor = ray.remote(WorkerActor).options(**options)
        stored = ray.put(transform)
        self._make: Callable[[], Any] = lambda: actor.remote(stored, url)
        self._lock = threading.Lock()
        self._seats = [Seat(self._make) for _ in range(workers)]
        self._left: list[Seat] = []
        self._error: Exception | None = None
        self._stopping = False
        self._draining = False
        self._rate = Rate()
        self._backlog = Backlog(transform, name)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="transform", daemon=True)
        self._thread.start()

    # --- progress ---

    def progress(self) -> TransformProgress:
        """The progress, at most half a second old; returns at once."""
        with self._lock:
            every = [*self._seats, *self._left]
            counts = sum((seat.counts for seat in every), TransformCounts())
            return TransformProgress(
                counts=counts,
                workers=tuple(seat.pid for seat in self._seats if seat.pid is not None),
                deaths=sum(seat.deaths for seat in every),
                backlog=self._backlog.entries,
                rate=self._rate.per_second,
                running=not self._ended.is_set(),
            )

    def show(self) -> None:
        """Show the progress on the terminal until it ends. Raises as `wait`."""
        with Live(get_renderable=lambda: progress_table(self.progress()), refresh_per_second=4):
            while not self._ended.is_set():
                self._ended.wait(STEP_S)
        self.wait()

    # --- control ---

    def scale(self, workers: int) -> None:
        """Change the number of workers; surplus workers finish their batches.

        Raises `InvalidConfiguration` for less than one worker, or if the run is ending.
        """
        _check_workers(workers)
        with self._lock:
            if self._stopping or self._draining or self._ended.is_set():
                raise InvalidConfiguration("the transform is stopping: start a new one")
            while len(self._seats) > workers:
                seat = self._seats.pop()
                seat.stop()
                self._left.append(seat)
            while len(self._seats) < workers:
                self._seats.append(Seat(self._make))

    def wait(self, timeout: float | None = None) -> TransformProgress:
        """Wait until the run has ended; by itself it ends only with an error.

        Raises the exception of the transform's function if there is no dead-letter policy, the
        service's error if it is permanent, and `TimeoutError` if the run hasn't ended in time.
        """
        if not self._ended.wait(timeout):
            raise TimeoutError(f"the transform is still running after {timeout} s")
        if self._error is not None:
            raise self._error
        return self.progress()

    def drain(self, timeout: float | None = None) -> TransformProgress:
        """Process everything that is in the topics now, then end; wait for that.

        This includes messages in the retry topic. Messages that are published later may be
        processed, too. Raises as `wait`; after a `TimeoutError` the run continues.
        """
        with self._lock:
            self._draining = True
            for seat in self._seats:
                seat.drain()
        return self.wait(timeout)

    def stop(self, timeout: float = 60.0) -> TransformProgress:
        """Make every worker finish its batch, and wait; workers that exceed the timeout are killed.

        The transaction of a killed worker is aborted by its timeout, and its messages are
        redelivered then. Raises the error with which the run had ended before, as `wait`.
        """
        self._stop_all()
        if not self._ended.wait(timeout):
            with self._lock:
                for seat in (*self._seats, *self._left):
                    seat.kill()
        return self.wait()

    def _stop_all(self) -> None:
        with self._lock:
            self._stopping = True
            for seat in self._seats:
                seat.stop()

    # --- supervision ---

    def _supervise(self) -> None:
        pause = threading.Event()
        while not self._ended.is_set():
            with self._lock:
                every = [*self._seats, *self._left]
                for seat in every:
                    seat.step()
                self._rate.note(sum(seat.counts.consumed for seat in every))
                failed = next((seat.error for seat in every if seat.error is not None), None)
                if all(seat.ended for seat in every):
                    self._error = failed
                    self._ended.set()
            if failed is not None and not self._stopping:
                self._stop_all()
            pause.wait(STEP_S)
        self._backlog.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.stop()
        else:
            self._stop_all()


def _check_workers(workers: int) -> None:
    if not isinstance(workers, int) or workers < 1:
        raise InvalidConfiguration(f"workers={workers!r} must be at least 1")
