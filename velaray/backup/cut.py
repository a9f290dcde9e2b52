"""The history of a journal up to a moment.

Each frame has the time at which its owner wrote it, so the frames up to a moment are a prefix. The
ledger in which the prefix ends becomes the last one, and later ones are left out: the checkpoint at
the start of a ledger is the state after all frames before it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, replace

from velaray.events.codec import MalformedEventError, UnknownEventError, decode
from velaray.events.events_pb2 import LedgersUnlisted
from velaray.journal.errors import JournalError
from velaray.journal.manifest import LedgerInfo, Manifest
from velaray.journal.scan import Frame, LedgerReader, read_header
from velaray.journal.store import LedgerStore


class ClockWentBack(JournalError):
    """A frame has an earlier time than a frame before it: the clocks of the processes differ, or a
    clock was set back."""

    def __init__(self, file: str, offset: int) -> None:
        super().__init__(
            f"{file}: the frame at byte {offset} is older than one before it: a clock was set "
            "back, or the clocks of the machines differ; synchronize them"
        )
        self.file = file


@dataclass(frozen=True, slots=True)
class Moment:
    """The end of the history that is wanted: frames up to ``at_ms`` (None: everything). Clocks
    differ by ``skew_ms`` at most."""

    at_ms: int | None
    skew_ms: int = 0

    def is_after(self, sealed_ms: int) -> bool:
        """Whether everything in a ledger that was sealed then is wanted, by any clock."""
        return self.at_ms is None or 0 < sealed_ms <= self.at_ms - self.skew_ms


@dataclass(frozen=True, slots=True)
class Known:
    """What a former cut found: the first ``info.bytes`` bytes of the ledger with this salt are
    whole, hold what ``info`` counts, and were written before ``at_ms``."""

    salt: bytes
    info: LedgerInfo
    at_ms: int

    def is_before(self, info: LedgerInfo, salt: bytes, moment: Moment) -> bool:
        """Whether the end in the same ledger at this moment can be searched behind that one."""
        # A crash may have removed what was found but wasn't synced.
        is_there = not info.sealed or self.info.bytes <= info.bytes
        is_early = moment.at_ms is None or self.at_ms <= moment.at_ms
        return self.salt == salt and is_there and is_early


@dataclass(frozen=True, slots=True)
class CutLedger:
    """A ledger up to the moment. ``info`` is sealed and counts what is in it. ``ends_here``: there
    are frames behind the moment."""

    info: LedgerInfo
    salt: bytes
    ends_here: bool


async def cut_ledger(
    store: LedgerStore, journal: str, info: LedgerInfo, moment: Moment, known: Known | None
) -> CutLedger:
    """Find the end of a ledger at a moment.

    A ledger that was sealed before isn't read, nor opened if it is known. Raises `NotStored`,
    `ClockWentBack`, `MissingKey` unless it isn't read, and `CorruptJournal` if frames before the
    moment are damaged.
    """
    is_whole = info.sealed and moment.is_after(info.sealed_ms)
    if is_whole and known is not None and known.info == info:
        return CutLedger(info, known.salt, ends_here=False)
    if is_whole:
        header = await read_header(store, journal, info.ledger_id)
        return CutLedger(info, header.salt, ends_here=False)
    reader = await LedgerReader.open(store, journal, info.ledger_id)
    salt = reader.header.salt
    start = replace(info, records=0, entries=0, bytes=info.data_offset)
    if known is not None and known.is_before(info, salt, moment):
        start = known.info
    last: Frame | None = None
    is_behind = False
    async for frame in _frames(reader, info, start):
        if moment.at_ms is None or frame.header.at_ms <= moment.at_ms:
            if is_behind:
                raise ClockWentBack(reader.file, frame.offset)
            last = frame
        else:
            is_behind = True
    found = _counted(reader, info, start, last)
    if info.sealed and not is_behind:
        found = info
    return CutLedger(found, salt, is_behind)


def _frames(reader: LedgerReader, info: LedgerInfo, start: LedgerInfo) -> AsyncIterator[Frame]:
    if info.sealed:
        return reader.whole(start.bytes, info.bytes)
    return reader.tail(start.bytes, info.first_sequence + start.records)


def _counted(
    reader: LedgerReader, info: LedgerInfo, start: LedgerInfo, last: Frame | None
) -> LedgerInfo:
    """The ledger, sealed behind ``last`` (None: no frame behind the start)."""
    records, entries, end, sealed_ms = start.records, start.entries, start.bytes, start.sealed_ms
    if last is not None:
        records = last.next_sequence - info.first_sequence
        entries = last.header.entry + sum(blob is not None for _, blob in reader.pairs(last))
        end, sealed_ms = last.end, last.header.at_ms
    return replace(
        info, records=records, entries=entries, bytes=end, sealed=True, sealed_ms=sealed_ms
    )


def removed_between(before: Manifest, after: Manifest) -> frozenset[int]:
    """The ledgers that only the earlier of two manifests lists."""
    return before.ownership.ledgers - after.ownership.ledgers


def with_removed(before: Manifest, after: Manifest, gone: Collection[int]) -> Manifest:
    """The later manifest, with the ledgers that only the earlier one lists, except ``gone``."""
    newer = {info.ledger_id: info for info in after.ledgers}
    last = before.ledgers[-1].ledger_id if before.ledgers else -1
    known = [
        info if info.sealed else replace(newer.get(info.ledger_id, info), whole=info.whole)
        for info in before.ledgers
    ]
    # What they refer to is listed, whatever was removed since.
    added = [replace(info, whole=True) for info in after.ledgers if info.ledger_id > last]
    return replace(after, ledgers=(*known, *added)).without(gone)


async def unlisted_by_events(
    store: LedgerStore, journal: str, cuts: Sequence[CutLedger], since: int
) -> frozenset[int]:
    """The ledgers of which a partition's events, in the ledgers from ``since`` on, say that the
    manifest doesn't list them any more."""
    found: set[int] = set()
    for cut in cuts:
        if cut.info.ledger_id < since:
            continue
        reader = await LedgerReader.open(store, journal, cut.info.ledger_id)
        async for frame in reader.whole(cut.info.data_offset, cut.info.bytes):
            for raw, blob in reader.pairs(frame):
                if blob is None:
                    found.update(_unlisted_by(bytes(raw)))
    return frozenset(found)


def _unlisted_by(raw: bytes) -> Sequence[int]:
    try:
        event = decode(raw)
    except (MalformedEventError, UnknownEventError):
        return ()  # verification reports it
    return event.ledger_ids if isinstance(event, LedgersUnlisted) else ()
