"""Simulated hosts with journals in one object store, under faults of requests and of processes.

The code under test is that of `velaray.journal.objects` and `velaray.journal.journal`; the actors
are small: an actor's state is the list of its events. A run is made from its seed.

Invariants, by name:

- AckedIsRecovered: an owner that has opened a journal has every acknowledged event, once.
- NothingUnseenAppears: it has what the owner before it had, then events of that owner in order.
- OneAckerPerEpoch: after it has opened, no event that it doesn't have is acknowledged.
- NoDanglingTail: a reader at any later time finds all of the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random

from tests.sim.loop import HARNESS, Node, SimLoop, context_of
from velaray.journal.errors import JournalError
from velaray.journal.journal import Journal, JournalSettings
from velaray.journal.objects.host_log import HostLogSettings
from velaray.journal.objects.housekeeping import HousekeepingSettings
from velaray.journal.objects.journal_record import Tail
from velaray.journal.objects.ledger_store import ObjectLedgerStore
from velaray.journal.objects.memory_objects import (
    Call,
    Late,
    MemoryBucket,
    MemoryObjects,
    Request,
)
from velaray.journal.objects.object_store import StoreUnavailable
from velaray.journal.objects.sealing import GONE
from velaray.journal.replay import verify

STORM_S = 30.0
"""Faults and changes of owners happen until then, in virtual seconds."""
PATIENCE_S = 4.0
MAX_TURNS = 400_000
SETTINGS = JournalSettings(roll_records=12, roll_bytes=4 << 10, frame_bytes=500)
HOST_LOG = HostLogSettings(commit_interval_s=0.1, largest_commit=600)
HOUSEKEEPING = HousekeepingSettings(
    unpack_bytes=2_000, unpack_objects=8, unpack_after_s=2.0, look_s=0.5
)


class Violated(AssertionError):
    """An invariant doesn't hold."""


@dataclass
class Past:
    """The acknowledged events of one journal, and the state that its newest owner opened with."""

    acked: list[bytes] = field(default_factory=list)
    epoch: int = 0
    opened: list[bytes] = field(default_factory=list)

    def acknowledge(self, key: str, epoch: int, events: list[bytes]) -> None:
        """An owner acknowledges these events."""
        if epoch < self.epoch:
            missing = [event for event in events if event not in self.opened]
            if missing:
                raise Violated(
                    f"OneAckerPerEpoch: {key}: epoch {epoch} acknowledges {missing}, and epoch "
                    f"{self.epoch} has opened without them"
                )
        self.acked += events

    def open(self, key: str, epoch: int, events: list[bytes]) -> None:
        """An owner has opened the journal with this state."""
        if epoch < self.epoch:
            return  # it learns late that it had opened
        self.read(key, f"epoch {epoch}", events)
        if events[: len(self.opened)] != self.opened:
            raise Violated(
                f"NothingUnseenAppears: {key}: epoch {epoch} has {events}, epoch {self.epoch} had "
                f"{self.opened}"
            )
        rest = events[len(self.opened) :]
        owner = f"e{self.epoch}-".encode()
        strangers = [event for event in rest if not event.startswith(owner)]
        numbers = [int(event.split(b"-")[1]) for event in rest]
        if strangers or numbers != sorted(numbers):
            raise Violated(
                f"NothingUnseenAppears: {key}: epoch {epoch} recovers {rest} behind what epoch "
                f"{self.epoch} had"
            )
        self.epoch, self.opened = epoch, events

    def read(self, key: str, who: str, events: list[bytes]) -> None:
        """Somebody has read the journal."""
        for event in self.acked:
            if events.count(event) != 1:
                raise Violated(
                    f"AckedIsRecovered: {key}: {who} has {event!r} {events.count(event)} times"
                )


class Host(Node):
    """A process with a store and actors."""

    def __init__(self, name: str, run: HostLogsRun) -> None:
        super().__init__(name)
        self.run = run
        rng = Random(f"{run.seed}/{name}")
        self.store = ObjectLedgerStore(
            MemoryObjects(run.bucket, self._hook),
            settings=HOST_LOG,
            housekeeping=HOUSEKEEPING,
            random_bytes=rng.randbytes,
            source=rng,
            number_block=2,
            before_seal=self._before_seal,
            patience_s=PATIENCE_S,
        )
        self.actors: dict[str, Actor] = {}

    async def _before_seal(self, journal: str, tail: Tail, number: int) -> int | None:
        return await self.run.ask(journal, tail)

    async def _hook(self, call: Call) -> None:
        await self.run.request(self, call)


class Actor:
    """One activation of a journal on a host."""

    def __init__(self, host: Host, key: str) -> None:
        self.host = host
        self.key = key
        self.ended = False
        self.failed = False
        self.closing = False
        loop = host.run.loop
        self.task = loop.create_task(self._life(), context=context_of(host))

    def fail(self) -> None:
        """End it as an error does, without closing its journal; the host goes on."""
        self.ended = self.failed = True
        self.task.cancel()

    async def _life(self) -> None:
        run = self.host.run
        journal: Journal | None = None
        try:
            journal = await Journal.open(
                self.host.store, self.key, SETTINGS, clock_ms=lambda: int(run.loop.time() * 1000)
            )
            state = events_of(journal)
            await journal.start({"events": b"\n".join(state)}, b"")
            run.pasts[self.key].open(self.key, journal.epoch, state)
            run.counts["opened"] += 1
            await self._work(journal, list(state))
        except JournalError:
            run.counts["failed"] += 1
        finally:
            self.ended = True
            if journal is not None and not self.host.dead and not self.failed:
                with suppress(JournalError):
                    await journal.close()

    async def _work(self, journal: Journal, state: list[bytes]) -> None:
        run, rng, number = self.host.run, self.host.run.rng, 0
        while not self.closing:
            await asyncio.sleep(rng.random() * 0.4)
            if rng.random() < 0.2:
                await self._confirm(journal)
            events = []
            for _ in range(rng.randint(1, 3)):
                events.append(f"e{journal.epoch}-{number}-{self.host.name}".encode())
                number += 1
            for event in events:
                journal.stage(event, b"x" * rng.randint(0, 60))
            await journal.commit()
            run.pasts[self.key].acknowledge(self.key, journal.epoch, events)
            run.counts["acknowledged"] += len(events)
            state += events
            if journal.should_roll or rng.random() < 0.03:
                await journal.roll({"events": b"\n".join(state)}, b"")
                if len(journal.ledgers) > 4:
                    old = [info.ledger_id for info in journal.ledgers[:-4]]
                    await journal.drop_from_manifest(set(old) - journal.needed)

    async def _confirm(self, journal: Journal) -> None:
        past = self.host.run.pasts[self.key]
        known = past.epoch
        if await journal.confirm() and known > journal.epoch:
            raise Violated(
                f"OneAckerPerEpoch: {self.key}: epoch {journal.epoch} is confirmed after epoch "
                f"{known} has opened"
            )


def events_of(journal: Journal) -> list[bytes]:
    """The state that an owner recovers."""
    checkpoint = journal.recovered.checkpoint
    known = checkpoint.segments["events"].split(b"\n") if checkpoint else []
    return [event for event in known if event] + [r.event for r in journal.recovered.records]


class HostLogsRun:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(f"{seed}/run")
        self.loop = SimLoop(MAX_TURNS)
        self.bucket = MemoryBucket()
        self.keys = [f"partition/t/n/j{n}/-1/1" for n in range(self.rng.randint(1, 4))]
        self.pasts = {key: Past() for key in self.keys}
        self.counts = dict.fromkeys(("opened", "acknowledged", "failed", "killed", "released"), 0)
        self.hosts: list[Host] = []
        self.violation: Violated | None = None
        self._started = 0
        self._troubled_until_s = 0.0
        self._calm = self.rng.random() < 0.2
        self._error_rate = self.rng.choice((0.0, 0.01, 0.05))

    def execute(self) -> None:
        """Run it. Raises `Violated`."""
        self.loop.set_exception_handler(self._note)
        try:
            with self._current_loop():
                self.loop.run_until_complete(
                    self.loop.create_task(self._main(), context=context_of(HARNESS))
                )
        finally:
            self.loop.finish()
        if self.violation is not None:
            raise self.violation

    @contextmanager
    def _current_loop(self) -> Iterator[None]:
        asyncio.set_event_loop(self.loop)
        try:
            yield
        finally:
            asyncio.set_event_loop(None)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if isinstance(error, Violated):
            self.violation = self.violation or error

    # -- requests ------------------------------------------------------------------

    async def request(self, host: Host, call: Call) -> None:
        """Delay a request, refuse it, lose its answer, or kill its process."""
        rng = self.rng
        await asyncio.sleep(0.005 + rng.random() * 0.03)
        if self.loop.time() > STORM_S or self._calm:
            return
        if self.loop.time() < self._troubled_until_s and rng.random() < 0.6:
            raise StoreUnavailable(call.name, "503")
        writes = call.request in (Request.CREATE, Request.REPLACE)
        luck = rng.random()
        if luck < self._error_rate:
            if writes and not call.done and rng.random() < 0.5:
                raise Late(rng.random() ** 3 * 12)
            raise StoreUnavailable(call.name, "timeout")
        if luck < self._error_rate + 0.01:
            await asyncio.sleep(rng.random() ** 3 * 8)
        elif luck < self._error_rate + 0.013:
            self._kill(host)
            await asyncio.Event().wait()

    # -- hosts ---------------------------------------------------------------------

    async def ask(self, journal: str, tail: Tail) -> int | None:
        """Ask every host to release a journal. Half of the times nobody is asked, as if none could
        be reached, and an answer may be lost."""
        if self.rng.random() < 0.5:
            return None
        for host in list(self.hosts):
            asked = self.loop.create_task(
                host.store.release_to_successor(journal, tail), context=context_of(host)
            )
            done, _ = await asyncio.wait({asked}, timeout=self.rng.random() * 3)
            if done and asked.result() != GONE and self.rng.random() < 0.9:
                self.counts["released"] += 1
                return asked.result()
        return None

    def _start_host(self) -> Host:
        self._started += 1
        host = Host(f"h{self._started}", self)
        self.hosts.append(host)
        return host

    def _kill(self, host: Host) -> None:
        host.dead = True
        if host in self.hosts:
            self.hosts.remove(host)
            self.counts["killed"] += 1

    def _activate(self, key: str) -> None:
        host = self.rng.choice(self.hosts)
        actor = host.actors.get(key)
        if actor is None or actor.ended or self.rng.random() < 0.1:
            host.actors[key] = Actor(host, key)

    async def _main(self) -> None:
        rng = self.rng
        for _ in range(rng.randint(1, 3)):
            self._start_host()
        while self.loop.time() < STORM_S:
            if not self.hosts:
                self._start_host()
            self._change()
            for task in [a.task for h in self.hosts for a in h.actors.values()]:
                if task.done() and not task.cancelled() and task.exception() is not None:
                    raise task.exception()  # type: ignore[misc]  # it isn't None
            await asyncio.sleep(rng.random() * 1.5)
        await self._judge()

    def _change(self) -> None:
        rng = self.rng
        match rng.choices(
            ("activate", "close", "fail", "kill", "pause", "trouble", "start"),
            (10, 3, 2, 1, 1, 0.5, 1),
        )[0]:
            case "activate":
                self._activate(rng.choice(self.keys))
            case "close":
                actors = [a for h in self.hosts for a in h.actors.values() if not a.ended]
                if actors:
                    rng.choice(actors).closing = True
            case "fail":
                actors = [a for h in self.hosts for a in h.actors.values() if not a.ended]
                if actors:
                    rng.choice(actors).fail()
            case "kill":
                self._kill(rng.choice(self.hosts))
            case "pause":
                self.loop.pause(rng.choice(self.hosts), rng.random() * 8)
            case "trouble":
                self._troubled_until_s = self.loop.time() + rng.random() * 6
            case "start":
                if len(self.hosts) < 4:
                    self._start_host()

    async def _judge(self) -> None:
        """Let hosts go on for a while, then kill all; a new process reads everything, twice."""
        for key in self.keys:
            if self.hosts:
                self._activate(key)
        await asyncio.sleep(15)
        for host in list(self.hosts):
            self._kill(host)
        for turn in range(2):
            judge = self._start_host()
            for key in self.keys:
                opening = self.loop.create_task(self._read(judge, key), context=context_of(judge))
                state = await asyncio.wait_for(opening, 300)
                self.pasts[key].read(key, f"reader {turn}", state)
                await self._verify(judge, key)
            await asyncio.sleep(15)
            self._kill(judge)

    async def _verify(self, host: Host, key: str) -> None:
        """Every listed ledger is there, whole."""
        work = verify(host.store, key)
        reports = await self.loop.create_task(work, context=context_of(host))
        problems = [problem for report in reports for problem in report.problems]
        if problems:
            raise Violated(f"NoDanglingTail: {key}: {problems}")

    async def _read(self, host: Host, key: str) -> list[bytes]:
        journal = await Journal.open(host.store, key, SETTINGS, clock_ms=lambda: 0)
        state = events_of(journal)
        await journal.start({"events": b"\n".join(state)}, b"")
        self.pasts[key].open(key, journal.epoch, state)
        return state


def run_seed(seed: int) -> dict[str, int]:
    """Run a seed; returns counts of what happened. Raises `Violated`, or what the product raised
    that it shouldn't."""
    run = HostLogsRun(seed)
    run.execute()
    return run.counts
