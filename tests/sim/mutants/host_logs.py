"""Bugs of host logs that the simulation of `tests.sim.host_logs` finds.

Most of them remove one of the rules of docs/decisions/0044-object-stores.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.sim.mutants.mutant import Mutant, do_nothing
from velaray.journal.objects.activation import Activation, Kept
from velaray.journal.objects.adoption import LogPage, LogReader
from velaray.journal.objects.bodies import Kind
from velaray.journal.objects.conditional import ConditionalObjects, Taken
from velaray.journal.objects.host_log import HostLog
from velaray.journal.objects.housekeeping import Housekeeper
from velaray.journal.objects.journal_record import JournalRecord, Status, Tail, record_object
from velaray.journal.objects.ledger_store import ObjectLedgerStore
from velaray.journal.objects.log_writer import LogWriter
from velaray.journal.objects.sealing import GONE


def _acknowledge_out_of_order(original: Any) -> Any:
    def advance(self: HostLog) -> None:
        for batch in self._flying:
            if batch.stored:
                for waiter in batch.waiters:
                    if not waiter.done():
                        waiter.set_result(None)
        original(self)

    return advance


def _do_not_seal(original: Any) -> Any:
    async def page_or_seal(self: LogReader, journal: str, tail: Tail, number: int) -> Any:
        page = await self.page(tail.incarnation, number)
        return (page if page is not None else LogPage(sealed=True)), None

    return page_or_seal


def _seal_behind_the_highest(original: Any) -> Any:
    async def adopt(self: LogReader, journal: str, tail: Any) -> Any:
        names = await self._objects.list(f"hosts/{tail.incarnation}/0")
        highest = max((int(name.rsplit("/", 1)[1]) for name in names), default=-1)
        if tail.end < 0:
            await self._page_or_seal(journal, tail, max(highest + 1, tail.first))
            return await self.read(journal, tail)
        return await original(self, journal, tail)

    return adopt


def _exists_means_success(original: Any) -> Any:
    async def create(self: ConditionalObjects, name: str, kind: Kind, payload: bytes) -> Any:
        try:
            return await original(self, name, kind, payload)
        except Taken:
            if kind is Kind.FRAMES:
                return "taken"
            raise

    return create


def _overwrite_the_tail(original: Any) -> Any:
    async def take(self: ObjectLedgerStore, journal: str, *arguments: Any) -> None:
        await original(self, journal, *arguments)
        mine = self.activations[journal]
        if mine.record.tail is not None:
            await self.replace_record(mine, replace(mine.record, tail=None))

    return take


def _close_without_waiting(original: Any) -> Any:
    async def close_record(self: ObjectLedgerStore, mine: Activation) -> None:
        tail = mine.record.tail
        assert tail is not None
        end = max(tail.first, mine.log.committed)
        closed = replace(mine.record, status=Status.CLOSED, tail=tail._replace(end=end))
        await self.replace_record(mine, closed)

    return close_record


def _acknowledge_after_the_cut(original: Any) -> Any:
    async def append(self: LogWriter, buffers: Any, **options: Any) -> bool:
        await original(self, buffers, **options)
        return True

    return append


def _no_look_at_the_floor(original: Any) -> Any:
    async def floor(self: LogReader, incarnation: str) -> int:
        return 0

    return floor


def _remember_the_seal_for_every_journal(original: Any) -> Any:
    async def page_or_seal(self: LogReader, journal: str, tail: Tail, number: int) -> Any:
        seals = self.__dict__.setdefault("seals", set())
        if tail.incarnation in seals:
            return LogPage(sealed=True), None
        page, end = await original(self, journal, tail, number)
        if page is not None and page.sealed:
            seals.add(tail.incarnation)
        return page, end

    return page_or_seal


def _list_before_the_copy(original: Any) -> Any:
    async def settled(self: ObjectLedgerStore, mine: Activation, expected: int) -> None:
        return None

    return settled


def _do_not_wait_for_the_checkpoint(original: Any) -> Any:
    async def append(self: LogWriter, buffers: Any, **options: Any) -> bool:
        if options.get("confirm") is not None:
            return bool(await original(self, buffers, **options))
        stage = HostLog.wait

        async def at_once(log: HostLog, number: int) -> None:
            return None

        self._owner.log.wait = at_once.__get__(self._owner.log)  # type: ignore[method-assign]
        try:
            return bool(await original(self, buffers, **options))
        finally:
            self._owner.log.wait = stage.__get__(self._owner.log)  # type: ignore[method-assign]

    return append


def _omit_the_copy(original: Any) -> Any:
    async def append(self: LogWriter, buffers: Any, **options: Any) -> bool:
        self._owner.copied = True
        return bool(await original(self, buffers, **options))

    return append


def _unpack_what_is_under_way(original: Any) -> Any:
    async def unpack(self: Housekeeper, mine: Activation) -> None:
        committed, mine.log.committed = mine.log.committed, mine.log.next_number
        try:
            work = original(self, mine)
            # The numbers are read before the first request.
            await work
        finally:
            mine.log.committed = max(committed, mine.log.committed - 0)

    return unpack


def _raise_the_floor_before_the_record(original: Any) -> Any:
    async def unpack(self: Housekeeper, mine: Activation) -> None:
        kept = mine.kept
        mine.kept = Kept()
        try:
            await self.raise_floor(mine.log)
        finally:
            mine.kept = kept
        await original(self, mine)

    return unpack


def _count_only_owners(original: Any) -> Any:
    def needed(self: Housekeeper) -> Any:
        return [a for a in self._owners.activations.values() if a.kept.chunks]

    return needed


def _count_only_open_records(original: Any) -> Any:
    def kept(self: Housekeeper) -> Any:
        return [a for a in original(self) if a.record.status is Status.OPEN or a.cut]

    return kept


def _send_what_was_cut(original: Any) -> Any:
    def end_it(self: Activation) -> None:
        self.cut = True

    return end_it


def _delete_merged_parts_before_the_record(original: Any) -> Any:
    async def write_part(
        self: Housekeeper, mine: Activation, ledger_id: int, former: Any, run: Any
    ) -> Any:
        parts = await original(self, mine, ledger_id, former, run)
        if former and former[-1] not in parts:
            await self._owners.objects.delete([former[-1].name])
        return parts

    return write_part


def _copy_what_is_not_listed(original: Any) -> Any:
    async def adopt(self: ObjectLedgerStore, mine: Activation, tail: Any) -> Any:
        listed = mine.record.listed
        mine.record = replace(mine.record, listed=_Everything())
        try:
            return await original(self, mine, tail)
        finally:
            mine.record = replace(mine.record, listed=listed)

    return adopt


class _Everything(frozenset[int]):
    def __contains__(self, item: object) -> bool:
        return True


def _release_one_object_less(original: Any) -> Any:
    async def release(self: ObjectLedgerStore, journal: str, tail: Tail) -> int:
        end = await original(self, journal, tail)
        return max(end - 1, 0) if end != GONE else GONE

    return release


def _release_without_the_cut(original: Any) -> Any:
    async def release(self: ObjectLedgerStore, journal: str, tail: Tail) -> int:
        return await original(self, "", tail)

    return release


def _replace_without_comparing(original: Any) -> Any:
    async def replace_record(self: Any, mine: Activation, record: JournalRecord) -> None:
        found = await self.objects.get(record_object(mine.journal))
        if found is not None:
            mine.tag = found.tag
        await original(self, mine, record)

    return replace_record


def _trust_ownership_without_looking(original: Any) -> Any:
    async def is_alive(self: HostLog, within_s: float = 0.0) -> bool:
        return self.failure is None

    return is_alive


HOST_LOG_MUTANTS: dict[str, Mutant] = {
    "acknowledge-out-of-order": Mutant(
        "an append is acknowledged although an earlier object isn't stored",
        ((HostLog, "_advance", _acknowledge_out_of_order),),
        within=200,
    ),
    "no-seal": Mutant(
        "a log is read to its end without a SEAL",
        ((LogReader, "_page_or_seal", _do_not_seal),),
        within=50,
    ),
    "seal-behind-the-highest": Mutant(
        "the SEAL is created behind the highest listed number",
        ((LogReader, "adopt", _seal_behind_the_highest),),
        within=200,
    ),
    "exists-means-success": Mutant(
        "a number that is taken counts as stored",
        ((ConditionalObjects, "create", _exists_means_success),),
        within=50,
    ),
    "take-overwrites-the-tail": Mutant(
        "a take drops the former owner's tail",
        ((ObjectLedgerStore, "_take", _overwrite_the_tail),),
        within=50,
    ),
    "close-without-waiting": Mutant(
        "a journal is closed before its appends are committed",
        (
            (ObjectLedgerStore, "_close_record", _close_without_waiting),
            (LogWriter, "append", _acknowledge_after_the_cut),
        ),
        within=200,
    ),
    "acknowledge-after-the-cut": Mutant(
        "an activation that was cut acknowledges",
        ((LogWriter, "append", _acknowledge_after_the_cut),),
        within=200,
    ),
    "no-look-at-the-floor": Mutant(
        "an adoption doesn't look at the floor after the SEAL",
        ((LogReader, "floor", _no_look_at_the_floor),),
        within=200,
    ),
    "remembered-seal": Mutant(
        "a SEAL that one journal's adoption created ends every journal's reading at once",
        ((LogReader, "_page_or_seal", _remember_the_seal_for_every_journal),),
        within=50,
    ),
    "list-before-the-copy": Mutant(
        "an owner lists its ledger before its copy and its checkpoint are committed",
        (
            (ObjectLedgerStore, "_settled", _list_before_the_copy),
            (LogWriter, "append", _do_not_wait_for_the_checkpoint),
        ),
        within=200,
    ),
    "no-copy": Mutant(
        "an owner doesn't copy what it adopted",
        ((LogWriter, "append", _omit_the_copy),),
        within=20,
    ),
    "unpack-what-is-under-way": Mutant(
        "an unpack includes objects that aren't committed",
        ((Housekeeper, "unpack", _unpack_what_is_under_way),),
        within=200,
    ),
    "floor-before-the-record": Mutant(
        "the floor is raised before the record that allows it is written",
        ((Housekeeper, "unpack", _raise_the_floor_before_the_record),),
        within=200,
    ),
    "floor-forgets-lost-journals": Mutant(
        "the floor ignores journals that were closed or lost",
        ((Housekeeper, "_kept", _count_only_owners),),
        within=200,
    ),
    "floor-forgets-pending-adoptions": Mutant(
        "the floor ignores the copies of journals that are opening",
        ((Housekeeper, "_kept", _count_only_open_records),),
        within=400,
    ),
    "send-what-was-cut": Mutant(
        "what a failed activation had staged counts as stored",
        ((Activation, "end_it", _send_what_was_cut), (Housekeeper, "left", do_nothing)),
        within=400,
    ),
    "merged-part-deleted-early": Mutant(
        "a merged part is deleted before the record names its successor",
        ((Housekeeper, "_write_part", _delete_merged_parts_before_the_record),),
        within=200,
    ),
    "copy-unlisted-ledgers": Mutant(
        "the bytes of a ledger that was never listed are copied",
        ((ObjectLedgerStore, "_adopt", _copy_what_is_not_listed),),
        within=50,
    ),
    "record-without-comparing": Mutant(
        "a record is replaced whatever is stored",
        ((ObjectLedgerStore, "replace_record", _replace_without_comparing),),
        within=100,
    ),
    "confirm-without-looking": Mutant(
        "ownership is confirmed without a look at the log",
        ((HostLog, "is_alive", _trust_ownership_without_looking),),
        within=200,
    ),
    "release-one-object-less": Mutant(
        "a released journal ends before its newest object",
        ((ObjectLedgerStore, "release_to_successor", _release_one_object_less),),
        within=200,
    ),
    "release-without-the-cut": Mutant(
        "a released journal's owner goes on",
        ((ObjectLedgerStore, "release_to_successor", _release_without_the_cut),),
        within=50,
    ),
}
