"""The entries of one producer that have no receipt yet, and their completion."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from velaray.client.batcher import Done, Entry, EntryDone
from velaray.client.exceptions import NotConnected, Timeout, VelarayError
from velaray.client.message_id import MessageId
from velaray.events.ids import MessageId as StoredId
from velaray.events.ids import TopicName
from velaray.schemas import SchemaInfo
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import entry_header


class SentEntry:
    """An entry without a receipt."""

    __slots__ = ("deadline", "entry", "flushed", "header", "number", "producer_id")

    def __init__(self, producer_id: int, entry: Entry, deadline: float, number: int) -> None:
        self.producer_id = producer_id
        self.entry = entry
        self.header = _header(producer_id, entry)
        self.deadline = deadline
        self.number = number
        self.flushed: list[asyncio.Future[None]] = []

    def stamp(self, versions: Mapping[SchemaInfo, bytes]) -> None:
        """Stamp the entry with its schema's version in the current cluster."""
        version = versions.get(self.entry.schema) if self.entry.schema else None
        if version is not None:
            self.entry = self.entry.stamped(version)
            self.header = _header(self.producer_id, self.entry)


def _header(producer_id: int, entry: Entry) -> bytes:
    command = pb.CommandSend(producer_id=producer_id, sequence_id=entry.first_sequence_id)
    if entry.messages > 1:
        command.num_messages = entry.messages
        command.highest_sequence_id = entry.last_sequence_id
    if entry.chunk is not None:
        command.is_chunk = True
    if entry.transaction is not None:
        command.txnid_most_bits, command.txnid_least_bits = entry.transaction
    return entry_header(command, len(entry.data))


class PendingEntries:
    """Entries without a receipt, in the order of sending.

    Each entry ends exactly once: with its receipt, with its send timeout, or with an error of the
    producer. The callbacks of its messages are called then.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        topic: TopicName,
        producer_id: int,
        timeout_millis: int,
    ) -> None:
        """``timeout_millis`` is the send timeout; 0 is no timeout."""
        self.entries: deque[SentEntry] = deque()
        self.failures = 0
        """Number of failed messages."""
        self.last_failure: VelarayError | None = None
        self._loop = loop
        self._topic = topic
        self._producer_id = producer_id
        self._timeout_millis = timeout_millis
        self._timer: asyncio.TimerHandle | None = None
        self._count = 0
        self._first_chunk: StoredId | None = None

    def add(self, entry: Entry) -> SentEntry:
        """Append an entry that is sent now."""
        timeout = self._timeout_millis / 1000
        self._count += 1
        sent = SentEntry(self._producer_id, entry, self._loop.time() + timeout, self._count)
        self.entries.append(sent)
        if timeout and self._timer is None:
            self._timer = self._loop.call_at(sent.deadline, self._expire)
        return sent

    def take_receipt(self, sequence_id: int) -> SentEntry | None:
        """Remove and return the oldest entry, to which this receipt belongs.

        Returns None if the receipt belongs to an entry that has ended. Raises `NotConnected` if it
        belongs to a later entry: a receipt was lost then.
        """
        if not self.entries or sequence_id < self.entries[0].entry.first_sequence_id:
            return None
        if sequence_id > self.entries[0].entry.last_sequence_id:
            raise NotConnected(f"{self._topic}: receipt {sequence_id} is out of step")
        return self.entries.popleft()

    def complete(self, sent: SentEntry, stored: StoredId) -> None:
        """Report the receipt to the entry's messages."""
        entry, first_chunk = sent.entry, None
        if entry.chunk is not None:
            number, count = entry.chunk
            if number == 0:
                self._first_chunk = stored
            if number == count - 1:
                first_chunk = self._first_chunk
        if entry.done is not None:
            entry.done(None, stored)
        batched = entry.batch
        for index, done in enumerate(entry.waiting):
            message_id = MessageId(
                self._topic.partition,
                stored.ledger_id,
                stored.entry_id,
                index if batched else -1,
                batch_size=entry.messages if batched else 0,
                topic=str(self._topic),
                first_chunk=first_chunk,
            )
            done(None, message_id)
        _flushed(sent)

    def refuse(self, sequence_id: int, error: VelarayError) -> None:
        """Fail the entry with this first sequence id, if there is one."""
        for sent in self.entries:
            if sent.entry.first_sequence_id == sequence_id:
                self._give_up_one(sent.entry, error)
                break

    def give_up(self, which: Callable[[Entry], bool], error: VelarayError) -> None:
        """Fail the entries that ``which`` selects."""
        gone = [sent for sent in self.entries if which(sent.entry)]
        if gone:
            self.entries = deque(sent for sent in self.entries if not which(sent.entry))
            self.fail_all(gone, error)

    def take_all(self) -> Iterable[SentEntry]:
        """Remove and return all entries, for `fail_all`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        entries, self.entries = self.entries, deque()
        return entries

    def fail_all(self, gone: Iterable[SentEntry], error: VelarayError) -> None:
        """Report the error to the messages of removed entries."""
        for sent in gone:
            for done in sent.entry.waiting:
                self.fail(done, error)
            if sent.entry.done is not None:
                self.fail(sent.entry.done, error)
            _flushed(sent)

    def fail(self, done: Done | EntryDone, error: VelarayError) -> None:
        """Report the error to one message."""
        self.failures += 1
        self.last_failure = error
        done(error, None)

    async def drained(self) -> None:
        """Wait until every entry that was added so far has ended."""
        last = self._count
        while self.entries and self.entries[0].number <= last:
            # The last entry usually completes last, so one iteration is usually enough.
            complete = self._loop.create_future()
            newest = next(sent for sent in reversed(self.entries) if sent.number <= last)
            newest.flushed.append(complete)
            await complete

    def _give_up_one(self, entry: Entry, error: VelarayError) -> None:
        """Fail ``entry`` and the other chunks of its message."""
        number = entry.first_sequence_id if entry.chunk is not None else None
        self.give_up(
            lambda it: it is entry or (it.chunk is not None and it.first_sequence_id == number),
            error,
        )

    def _expire(self) -> None:
        """Fail the entries whose send timeout has elapsed."""
        self._timer = None
        now = self._loop.time()
        while self.entries and self.entries[0].deadline <= now:
            self._give_up_one(
                self.entries[0].entry,
                Timeout(
                    f"{self._topic}: no receipt in {self._timeout_millis} ms;"
                    " the message may or may not be stored"
                ),
            )
        if self.entries:
            self._timer = self._loop.call_at(self.entries[0].deadline, self._expire)


def _flushed(sent: SentEntry) -> None:
    for future in sent.flushed:
        if not future.done():
            future.set_result(None)
