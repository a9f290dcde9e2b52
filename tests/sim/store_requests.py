"""Requests of simulated processes to an object store.

A request travels to the store, has its effect there at one moment, and its answer travels back. A
process that dies meanwhile doesn't stop it. Faults, unless the store is calm:

- the store refuses (503, or 409: in conflict with another request), once or for a while
- the answer is lost; the request has had its effect, or has it up to twelve seconds later, when the
  process has long repeated it
- the request is slow, or stalls for up to eight seconds
- a trap springs at a moment that matters: see `StoreTrap`
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any, Protocol, TypeVar

from tests.sim.history import History
from tests.sim.loop import HARNESS, Node, SimLoop, context_of, current_node
from tests.sim.store_bucket import SimBucket, journal_of_record
from velaray.journal.errors import JournalError, NotStored
from velaray.journal.objects.bodies import Kind, decode_body
from velaray.journal.objects.journal_record import (
    Status,
    decode_journal_record,
)
from velaray.journal.objects.object_store import (
    ObjectChanged,
    ObjectCounters,
    ObjectExists,
    StoredObject,
    StoreUnavailable,
)

T = TypeVar("T")

TRAVEL_S = 0.004
"""The longest way of a request or an answer without faults."""
TIMEOUT_S = 1.0
"""A process waits so long for an answer that is lost."""
LATEST_S = 12.0
STALLED_S = 8.0


class Moment(StrEnum):
    """What a request is for."""

    COMMIT = "commit to a log"
    SEAL = "seal a log"
    TAKE = "take a journal"
    OPEN = "open a journal"
    CLOSE = "close a journal"
    LIST = "write a manifest"
    NAME_PARTS = "name parts"
    WRITE_PART = "write a part"
    WRITE_FLOOR = "write a floor"
    READ_LOG = "read a log"
    READ_RECORD = "read a record"
    READ_PART = "read a part"
    DELETE = "delete"
    OTHER = "another request"


@dataclass
class StoreTrap:
    """A fault that waits for a request of a kind. ``passes`` of them are spared.

    Actions: the process is killed before the request arrives, while it is under way, or before it
    has the answer; the answer is lost; the request is late, stalled or refused; an actor of the
    process is taken for dead.
    """

    moment: Moment
    action: str
    size: float
    passes: int = 0

    def spring(self) -> None:
        """Do what it does besides the fault of its request: nothing."""


KILLS = ("crash before", "crash under way", "crash after")
ACTIONS = (*KILLS, *KILLS, "lost", "late", "stalled", "refused")


@dataclass
class Weather:
    """The faults of all requests: how many, and until when the store is in trouble or slow."""

    error_rate: float = 0.0
    stall_rate: float = 0.0
    troubled_until_s: float = 0.0
    slow_until_s: float = 0.0
    slow_s: float = 0.0

    def clear(self) -> None:
        """End all faults."""
        self.error_rate = self.stall_rate = self.troubled_until_s = self.slow_until_s = 0.0


class StoreOwner(Protocol):
    """The cluster that a store belongs to."""

    loop: SimLoop
    history: History
    bucket: SimBucket
    weather: Weather
    store_traps: list[StoreTrap]

    def end_process(self, node: Node) -> None:
        """End the process, as SIGKILL does."""
        ...


@dataclass
class _Trip:
    """The way of one request. ``lost`` and ``refused``: its answer."""

    there_s: float
    back_s: float
    lost: bool = False
    refused: str = ""


class SimObjects:
    """One process's connection to the simulated object store; implements `ObjectStore`."""

    def __init__(self, cluster: StoreOwner, rng: Random, spared: bool) -> None:
        """``spared``: nothing happens to its requests."""
        self.counters = ObjectCounters()
        self._cluster = cluster
        self._rng = rng
        self._spared = spared

    def location(self, name: str) -> str:
        """A name for error messages."""
        return f"simulated:{name}"

    async def create(self, name: str, data: bytes) -> str:
        """Store a new object; see `ObjectStore`."""
        bucket = self._cluster.bucket
        self._count_put(data)
        moment = _moment_of_write(bucket, name, data)
        return await self._request(moment, name, lambda: bucket.create(name, data), writes=True)

    async def replace(self, name: str, data: bytes, tag: str) -> str:
        """Replace a version; see `ObjectStore`."""
        bucket = self._cluster.bucket
        self._count_put(data)
        moment = _moment_of_write(bucket, name, data)
        return await self._request(
            moment, name, lambda: bucket.replace(name, data, tag), writes=True
        )

    def _count_put(self, data: bytes) -> None:
        self.counters.puts += 1
        self.counters.bytes_written += len(data)

    async def get(self, name: str) -> StoredObject | None:
        """An object; see `ObjectStore`."""
        self.counters.gets += 1
        objects = self._cluster.bucket.objects
        return await self._request(_moment_of_read(name), name, lambda: objects.get(name))

    async def get_range(self, name: str, start: int, length: int) -> bytes:
        """Bytes of an object; see `ObjectStore`."""
        found = await self.get(name)
        if found is None:
            raise NotStored(self.location(name))
        return found.data[start : start + length]

    async def list(self, prefix: str) -> list[str]:
        """The names; see `ObjectStore`."""
        self.counters.lists += 1
        objects = self._cluster.bucket.objects

        def found() -> list[str]:
            return sorted(name for name in objects if name.startswith(prefix))

        return await self._request(Moment.OTHER, prefix, found)

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects; see `ObjectStore`."""
        for name in names:
            self.counters.deletes += 1
            await self._request(
                Moment.DELETE, name, _removal(self._cluster.bucket, name), writes=True
            )

    async def close(self) -> None:
        """Do nothing."""

    # -- the way of a request --------------------------------------------------------

    async def _request(
        self, moment: Moment, name: str, effect: Callable[[], T], writes: bool = False
    ) -> T:
        cluster, node = self._cluster, current_node().process
        cluster.history.add("request", node=node.name, moment=moment, name=name)
        trip = self._trip(writes)
        trap = None if self._spared else self._sprung(moment)
        if trap is not None:
            cluster.history.add("trap", node=node.name, moment=moment, action=trap.action)
            trap.spring()
            _change(trip, trap)
            if trap.action == "crash before":
                cluster.end_process(node)
                await asyncio.Event().wait()
        if trip.refused:
            await asyncio.sleep(trip.there_s)
            raise StoreUnavailable(self.location(name), trip.refused)
        answer: asyncio.Future[T] = cluster.loop.create_future()
        after = trap is not None and trap.action == "crash after"

        def arrive() -> None:
            outcome = _outcome(effect)
            if after:
                cluster.end_process(node)
            cluster.loop.call_later(trip.back_s, _resolve, answer, outcome)

        # In a context of its own: what is under way doesn't end with its process.
        cluster.loop.call_later(trip.there_s, arrive, context=context_of(HARNESS))
        if trap is not None and trap.action == "crash under way":
            cluster.end_process(node)
        if trip.lost:
            await asyncio.sleep(TIMEOUT_S)
            raise StoreUnavailable(self.location(name), "timeout")
        return await answer

    def _sprung(self, moment: Moment) -> StoreTrap | None:
        for trap in self._cluster.store_traps:
            if trap.moment is moment:
                if trap.passes:
                    trap.passes -= 1
                    continue
                self._cluster.store_traps.remove(trap)
                return trap
        return None

    def _trip(self, writes: bool) -> _Trip:
        """The way of a request without traps."""
        rng, weather, now_s = self._rng, self._cluster.weather, self._cluster.loop.time()
        longest_s = weather.slow_s if now_s < weather.slow_until_s else TRAVEL_S
        trip = _Trip(rng.random() * longest_s, rng.random() * longest_s)
        luck, kind = rng.random(), rng.random()
        if self._spared:
            return trip
        if now_s < weather.troubled_until_s and kind < 0.6:
            trip.refused = "503"
        elif luck < weather.error_rate:
            if kind < 0.3:
                trip.refused = "409"
            else:
                trip.lost = True
                if writes and kind < 0.6:
                    trip.there_s += rng.random() ** 3 * LATEST_S
        elif luck < weather.error_rate + weather.stall_rate:
            trip.there_s += rng.random() ** 3 * STALLED_S
        return trip


def _change(trip: _Trip, trap: StoreTrap) -> None:
    """Apply a trap to the way of its request."""
    match trap.action:
        case "crash under way":
            trip.there_s += trap.size**3 * LATEST_S
        case "lost":
            trip.lost = True
        case "late":
            trip.lost = True
            trip.there_s += trap.size * LATEST_S
        case "stalled":
            trip.there_s += trap.size * STALLED_S
        case "refused":
            trip.refused = "503"


def _outcome(effect: Callable[[], T]) -> T | JournalError:
    try:
        return effect()
    except (ObjectExists, ObjectChanged) as error:
        return error


def _resolve(answer: asyncio.Future[Any], outcome: Any) -> None:
    if answer.done():
        return  # the process has given up
    if isinstance(outcome, JournalError):
        answer.set_exception(outcome)
        answer.exception()  # its process may have ended
    else:
        answer.set_result(outcome)


def _removal(bucket: SimBucket, name: str) -> Callable[[], None]:
    return lambda: bucket.remove(name)


def _moment_of_read(name: str) -> Moment:
    folder = name.partition("/")[0]
    return {
        "hosts": Moment.READ_LOG,
        "journals": Moment.READ_RECORD,
        "ledgers": Moment.READ_PART,
    }.get(folder, Moment.OTHER)


def _moment_of_write(bucket: SimBucket, name: str, data: bytes) -> Moment:
    match decode_body(name, name, data, *Kind).kind:
        case Kind.FRAMES:
            return Moment.COMMIT
        case Kind.SEAL:
            return Moment.SEAL
        case Kind.PART:
            return Moment.WRITE_PART
        case Kind.FLOOR:
            return Moment.WRITE_FLOOR
        case Kind.MANIFEST:
            record = decode_journal_record(name, name, data)
            former = bucket.record(journal_of_record(name))
            if former and (record.version == former.version) and record.parts != former.parts:
                return Moment.NAME_PARTS
            if record.status is not Status.OPEN:
                return Moment.CLOSE if record.status is Status.CLOSED else Moment.TAKE
            is_new = former is None or former.status is Status.OPENING
            return Moment.OPEN if is_new else Moment.LIST
    return Moment.OTHER
