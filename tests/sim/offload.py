"""Simulated owners that offload their ledgers, under faults of the archive and of processes.

The code under test is `velaray.journal.offload`, `velaray.broker.partition.offloader` and
`velaray.journal.garbage_collection`; the owners are small. A run is made from its seed. Deletion
events are a list that outlives processes; an event is removed after its ledger is deleted.

Invariants, by name:

- ListedIsStored: at every step, each listed ledger is whole, here or in the archive.
- MarksStay: a ledger that is marked as offloaded stays marked while it is listed.
- AckedIsRead: an owner reads every acknowledged entry of its listed ledgers.
- OpensAlone: opening a journal makes no request to the archive.
- NothingIsLeft: in the end the archive and the disk have listed ledgers only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.sim.loop import HARNESS, Node, SimLoop, context_of
from velaray.broker.partition.offloader import Offloader, beyond_size
from velaray.broker.topic_policies import TopicPolicies
from velaray.events.ids import EARLIEST, ActorKey
from velaray.journal.errors import CorruptJournal, JournalError, NotStored
from velaray.journal.garbage_collection import Fate, dispose, purge
from velaray.journal.journal import Journal, JournalSettings
from velaray.journal.manifest import Manifest, decode_manifest
from velaray.journal.memory import MemoryDisk, MemoryStore, Step
from velaray.journal.objects.bodies import HEADER_SIZE
from velaray.journal.objects.conditional import ConditionalObjects
from velaray.journal.objects.memory_objects import (
    Call,
    Late,
    MemoryBucket,
    MemoryObjects,
    Request,
)
from velaray.journal.objects.object_store import StoreUnavailable
from velaray.journal.offload import archive as archives
from velaray.journal.offload import read_ahead
from velaray.journal.offload.archive import LedgerArchive, end_name, part_name
from velaray.journal.offload.rounds import sweep_archive
from velaray.journal.offload.tiered_store import TieredStore

STORM_S = 40.0
"""Faults and changes of owners happen until then, in virtual seconds."""
PATIENCE_S = 3.0
MAX_TURNS = 600_000
PART_BYTES, BLOCK_BYTES = 400, 150
"""Ledgers have several parts, and several blocks."""
SETTINGS = JournalSettings(roll_records=10, roll_bytes=4 << 10, frame_bytes=500)
KEPT = 12
"""With so many ledgers an owner trims the older half now and then."""


class Violated(AssertionError):
    """An invariant doesn't hold."""


class Process(Node):
    """A process with a store of two tiers."""

    def __init__(self, name: str, run: OffloadRun) -> None:
        super().__init__(name)
        self.run = run
        rng = Random(f"{run.seed}/{name}")
        local = MemoryStore(run.disk, hook=self._on_disk, seed=rng.getrandbits(32))
        objects = MemoryObjects(run.bucket, self._at_archive)
        conditional = ConditionalObjects(objects, rng.randbytes, rng, PATIENCE_S)
        self.store = TieredStore(local, LedgerArchive(conditional))

    async def _on_disk(self, step: Step, journal: str) -> None:
        await self.run.disk_step(self)

    async def _at_archive(self, call: Call) -> None:
        await self.run.request(self, call)

    def start(self, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine in this process."""
        return self.run.loop.create_task(work, context=context_of(self))


class Owner:
    """One activation of a journal, in a process of its own."""

    def __init__(self, run: OffloadRun, key: str) -> None:
        self.run = run
        self.key = key
        self.process = Process(f"{key.rsplit('/', 1)[1]}-{run.next_number()}", run)
        self.journal: Journal
        self.writing = asyncio.Lock()
        self.closing = False
        lag_ms = run.rng.choice((0, 2_000))
        self.offloader = Offloader(self._partition({"offloadDeletionLagMs": lag_ms}))
        self.task = self.process.start(self._life())

    def _partition(self, policies: dict[str, Any]) -> Any:
        """What an offloader needs of a partition."""
        owner = self

        class Runtime:
            state = SimpleNamespace(trimmed=())

            @property
            def journal(self) -> Journal:
                return owner.journal

            async def mark_offloaded(self, ledger_ids: Collection[int]) -> None:
                async with owner.writing:
                    await owner.journal.mark_offloaded(ledger_ids)
                    owner.run.note_marks(owner.key, owner.journal)
                owner.run.counts["offloaded"] += 1

        return SimpleNamespace(
            topic=self.key,
            key=ActorKey.parse(self.key),
            policies=TopicPolicies.of(policies),
            actor_system=SimpleNamespace(store=self.process.store, clock_ms=self.run.clock_ms),
            runtime=Runtime(),
            spawn=self.process.start,
        )

    async def _life(self) -> None:
        run, store = self.run, self.process.store
        try:
            self.journal = await Journal.open(store, self.key, SETTINGS, clock_ms=run.clock_ms)
            await self.journal.start({"events": b""}, b"")
            if store.archive.counters.gets or store.archive.counters.lists:
                run.violated(f"OpensAlone: {self.key}: {store.archive.counters}")
            run.counts["opened"] += 1
            moving = self.process.start(self._move())
            try:
                await self._write()
            except JournalError:
                await asyncio.sleep(5)  # one that was superseded learns it late
                raise
            finally:
                moving.cancel()
            await self.journal.close()
        except JournalError:
            run.counts["failed"] += 1

    async def _write(self) -> None:
        run, rng, journal = self.run, self.run.rng, self.journal
        while not self.closing:
            await asyncio.sleep(rng.random() * 0.3)
            if rng.random() < 0.1:
                await self._read()
            events = [b"%d" % run.next_number() for _ in range(rng.randint(1, 3))]
            async with self.writing:
                for event in events:
                    journal.stage(event, event * rng.randint(1, 30))
                await journal.commit()
                last = journal.ledgers[-1].ledger_id
                run.acked.setdefault(last, []).extend(events)
                if journal.should_roll or rng.random() < 0.05:
                    offloaded = {each.ledger_id for each in journal.ledgers if each.offloaded_ms}
                    journal.leave(offloaded)
                    kept = {**journal.stored, **({"events": b""} if rng.random() < 0.3 else {})}
                    await journal.roll(kept, b"")
            await self._trim()

    async def _trim(self) -> None:
        journal, rng = self.journal, self.run.rng
        if len(journal.ledgers) < KEPT or rng.random() < 0.9:
            return
        old = {info.ledger_id for info in journal.ledgers[: -KEPT // 2]} - journal.needed
        self.run.events += [(self.key, ledger_id) for ledger_id in sorted(old)]
        async with self.writing:
            await journal.drop_from_manifest(old)

    async def _move(self) -> None:
        store, rng = self.process.store, self.run.rng
        while True:
            await asyncio.sleep(rng.random() * 2)
            with suppress(JournalError):
                wanted = beyond_size(self.journal.ledgers, rng.choice((0, 0, 1_000)))
                await self.offloader._offload(store, wanted)
                await self.offloader.delete_due(store)

    async def _read(self) -> None:
        """Read everything that is listed. An archive that doesn't answer is no fault."""
        expected = {info.ledger_id: self.run.known(info.ledger_id) for info in self.journal.ledgers}
        found: dict[int, list[bytes]] = {}
        position = EARLIEST
        try:
            while entries := await self.journal.read(position, 7, 1 << 12):
                for entry in entries:
                    found.setdefault(entry.position.ledger_id, []).append(bytes(entry.event))
                last = entries[-1].position
                position = last._replace(entry_id=last.entry_id + 1)
        except StoreUnavailable:
            return
        except (CorruptJournal, NotStored) as error:
            if isinstance(error, CorruptJournal) or await self.journal.confirm():
                self.run.violated(f"AckedIsRead: {self.key}: {error}")
            raise
        listed = {info.ledger_id for info in self.journal.ledgers}
        for ledger_id in listed.intersection(expected):
            if found.get(ledger_id, [])[: len(expected[ledger_id])] != expected[ledger_id]:
                self.run.violated(f"AckedIsRead: {self.key}: ledger {ledger_id}: {found}")
        self.run.counts["read"] += 1


class OffloadRun:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(f"{seed}/run")
        self.loop = SimLoop(MAX_TURNS)
        self.disk = MemoryDisk()
        self.bucket = MemoryBucket()
        self.events: list[tuple[str, int]] = []
        self.acked: dict[int, list[bytes]] = {}
        self.marks: dict[str, frozenset[int]] = {}
        self.whole: dict[int, bytes] = {}
        self.counts = dict.fromkeys(
            ("opened", "failed", "killed", "offloaded", "read", "moved", "deleted", "swept"), 0
        )
        self.owners: dict[str, Owner] = {}
        self.collector: Process | None = None
        self.violation: BaseException | None = None
        self._number = 0
        self._error_rate = self.rng.choice((0.0, 0.01, 0.04))
        self._damage_rate = self.rng.choice((0.0, 0.0, 0.03))
        self._damaged: set[str] = set()
        self._seen: tuple[Any, ...] = ()

    def next_number(self) -> int:
        """A number of its own for each owner and event."""
        self._number += 1
        return self._number

    def clock_ms(self) -> int:
        """Virtual milliseconds."""
        return 1 + int(self.loop.time() * 1000)

    def known(self, ledger_id: int) -> list[bytes]:
        """The acknowledged events of a ledger."""
        return list(self.acked.get(ledger_id, ()))

    def execute(self) -> None:
        """Run it. Raises `Violated`, or what the product raised that it shouldn't."""
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

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception) and not isinstance(error, JournalError):
            self.violation = self.violation or error

    # -- faults --------------------------------------------------------------------

    @property
    def _storms(self) -> bool:
        return self.loop.time() < STORM_S

    async def disk_step(self, process: Process) -> None:
        """A step of the local store: it takes time, and the process may die before it."""
        self.check()
        await asyncio.sleep(0.001)
        if self._storms and self.rng.random() < 0.002:
            self._kill(process)
            await asyncio.Event().wait()

    async def request(self, process: Process, call: Call) -> None:
        """Delay a request to the archive, refuse it, lose its answer, store something else, or
        kill its process."""
        self.check()
        rng = self.rng
        await asyncio.sleep(0.005 + rng.random() * 0.02)
        if not self._storms:
            return
        creates, luck = call.request is Request.CREATE, rng.random()
        if creates and call.done and rng.random() < self._damage_rate:
            found = self.bucket.objects[call.name]
            flipped = found.data[:-1] + bytes([found.data[-1] ^ 1])
            self.bucket.objects[call.name] = found._replace(data=flipped)
            self._damaged.add(call.name)
        if luck < self._error_rate:
            if creates and not call.done and rng.random() < 0.5:
                raise Late(rng.random() ** 3 * 12)
            raise StoreUnavailable(call.name, "timeout")
        if luck < self._error_rate + 0.005:
            self._kill(process)
            await asyncio.Event().wait()

    def _kill(self, process: Process) -> None:
        process.dead = True
        self.counts["killed"] += 1
        if process is self.collector:
            self.collector = None
        self.owners = {key: each for key, each in self.owners.items() if each.process.dead is False}

    def _repair(self) -> None:
        """An operator deletes damaged objects of copies that aren't recorded, by their names."""
        for name in sorted(self._damaged & self.bucket.objects.keys()):
            if not any(str(marked) in name for marks in self.marks.values() for marked in marks):
                del self.bucket.objects[name]
        self._damaged.clear()

    # -- invariants ----------------------------------------------------------------

    def _manifests(self) -> Iterator[tuple[str, Manifest]]:
        for key, files in self.disk._journals.items():
            if files.version:
                yield key, decode_manifest(key, files.manifest)

    def check(self) -> None:
        """Raise `Violated` if a listed ledger isn't whole anywhere, or a mark is lost."""
        versions = tuple(files.version for files in self.disk._journals.values())
        ledgers = tuple(len(files.ledgers) for files in self.disk._journals.values())
        seen = (versions, ledgers, self.bucket._writes, len(self.bucket.objects))
        if seen == self._seen:
            return
        self._seen = seen
        for key, manifest in self._manifests():
            listed = manifest.ownership.ledgers
            if lost := self.marks.get(key, frozenset()) & listed - manifest.offloaded:
                self.violated(f"MarksStay: {key}: {sorted(lost)}")
            self.marks[key] = manifest.offloaded
            local = self.disk._files(key).ledgers
            for info in manifest.ledgers:
                if info.ledger_id in local:
                    if info.sealed:
                        seen = bytes(local[info.ledger_id].seen[: info.bytes])
                        self.whole.setdefault(info.ledger_id, seen)
                elif self._archived(key, info.ledger_id) != self.whole.get(info.ledger_id):
                    self.violated(f"ListedIsStored: {key}: ledger {info.ledger_id}")

    def note_marks(self, key: str, journal: Journal) -> None:
        """An owner has marked ledgers."""
        marked = (info.ledger_id for info in journal.ledgers if info.offloaded_ms)
        self.marks[key] = self.marks.get(key, frozenset()).union(marked)

    def violated(self, text: str) -> None:
        """End the run: an invariant doesn't hold."""
        self.violation = self.violation or Violated(text)

    def _archived(self, key: str, ledger_id: int) -> bytes | None:
        """The bytes of a ledger in the archive; None without its end."""
        if end_name(key, ledger_id) not in self.bucket.objects:
            return None
        parts, number = [], 0
        while (found := self.bucket.objects.get(part_name(key, ledger_id, number))) is not None:
            parts.append(found.data[HEADER_SIZE:])
            number += 1
        return b"".join(parts)

    # -- the run -------------------------------------------------------------------

    async def _main(self) -> None:
        rng, incarnation = self.rng, 0
        keys = [f"partition/t/n/j{n}/-1/1" for n in range(rng.randint(1, 3))]
        while self.loop.time() < STORM_S and self.violation is None:
            key = rng.choice(keys)
            owner = self.owners.get(key)
            match rng.choices(("open", "close", "kill", "collect", "delete"), (8, 2, 1, 4, 0.3))[0]:
                case "open":
                    if owner is None or owner.task.done() or rng.random() < 0.1:
                        self.owners[key] = Owner(self, key)
                case "close" if owner is not None:
                    owner.closing = True
                case "kill" if owner is not None:
                    self._kill(owner.process)
                case "collect":
                    self._collect()
                case "delete":
                    incarnation += 1
                    keys[keys.index(key)] = f"partition/t/n/j{incarnation}/-1/{incarnation + 9}"
                    Process(f"deleter-{incarnation}", self).start(self._delete(key))
            if rng.random() < 0.1:
                self._repair()
            await asyncio.sleep(rng.random())
        if self.violation is None:
            await self._judge(keys)

    def _collect(self) -> None:
        """Start the collector if it isn't running."""
        if self.collector is None:
            self.collector = Process(f"collector-{self.next_number()}", self)
            self.collector.start(self._deletions(self.collector.store))

    async def _deletions(self, store: TieredStore) -> None:
        while True:
            for event in list(self.events):
                with suppress(JournalError):
                    if await dispose(store, *event) is not Fate.LISTED and event in self.events:
                        self.events.remove(event)
                        self.counts["deleted"] += 1
            with suppress(JournalError):
                self.counts["swept"] += await sweep_archive(store)
            await asyncio.sleep(2)

    async def _delete(self, key: str) -> None:
        """Delete the journal of a topic, as often as it takes."""
        process = Process(f"purge-{self.next_number()}", self)

        async def enqueue(ledger_ids: Collection[int]) -> None:
            self.events += [(key, ledger_id) for ledger_id in ledger_ids]

        while True:
            with suppress(JournalError):
                await purge(process.store, key, enqueue)
                return
            await asyncio.sleep(1)

    async def _judge(self, keys: list[str]) -> None:
        """Without faults, everything is deleted that should be, and all else is read."""
        await asyncio.sleep(15)
        self._repair()
        for owner in list(self.owners.values()):
            self._kill(owner.process)
        for key in {key for key, _ in self._manifests()} - set(keys):
            await self._delete(key)
        self._collect()
        await asyncio.sleep(30)
        for key in keys:
            if any(key == known for known, _ in self._manifests()):
                owner = self.owners[key] = Owner(self, key)
                await asyncio.sleep(10)
                await owner._read()
                self._kill(owner.process)
        self._collect()
        await asyncio.sleep(30)
        self.check()
        self._check_leftovers()

    def _check_leftovers(self) -> None:
        listed = {(key, each) for key, m in self._manifests() for each in m.ownership.ledgers}
        stored = {(key, each) for key, f in self.disk._journals.items() for each in f.ledgers}
        for name in self.bucket.objects:
            journal, ledger_id = name.removeprefix("ledgers/").rsplit("/", 2)[:2]
            if (journal, int(ledger_id)) not in listed:
                self.violated(f"NothingIsLeft: {name}")
        moved = {name.rsplit("/", 2)[1] for name in self.bucket.objects}
        self.counts["moved"] = sum(str(each) in moved for _, each in listed - stored)
        alive = {key for key, manifest in self._manifests() if not manifest.dead}
        for key, ledger_id in sorted(stored - listed):
            if key not in alive:
                self.violated(f"NothingIsLeft: ledger {ledger_id} of {key}")


def run_seed(seed: int) -> dict[str, int]:
    """Run a seed; returns counts of what happened. Raises `Violated`, or what the product raised
    that it shouldn't."""
    run = OffloadRun(seed)
    with (
        patch.object(archives, "PART_BYTES", PART_BYTES),
        patch.object(read_ahead, "BLOCK_BYTES", BLOCK_BYTES),
    ):
        run.execute()
    return run.counts
