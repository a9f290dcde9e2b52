"""Bugs of the relaxed mode, in which partitions are synced on a timer."""

from __future__ import annotations

from typing import Any

from tests.sim.mutants.mutant import Mutant
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.journal import frames
from velaray.journal.journal import Journal
from velaray.journal.memory import _MemoryWriter
from velaray.topology.messages import Message


def _acknowledge_at_once(original: Any) -> Any:
    def acknowledge(self: SubscriptionChannel, notice: Message, end: int) -> None:
        self.tell(notice)

    return acknowledge


def _omit_the_lag(original: Any) -> Any:
    def encode(*arguments: Any, **named: Any) -> bytes:
        return original(*arguments, **{**named, "lag": 0})

    return encode


def _let_all_wait(original: Any) -> Any:
    def may_wait(self: Journal, before: Any, after: Any) -> bool:
        return self._settings.sync_interval_ms > 0

    return may_wait


def _roll_unsynced(original: Any) -> Any:
    async def roll(self: Journal, *checkpoint: Any) -> int:
        self._behind = None
        return await original(self, *checkpoint)

    return roll


def _mark_unsynced_frames(original: Any) -> Any:
    """The mark of a sync is written without the sync."""

    async def append(self: Any, buffers: Any, *, confirm: int) -> bool:
        size = self._end
        held = await original(self, buffers, confirm=confirm)
        header = bytes(buffers[0])
        file = bytes(self._file.seen)
        ledger = frames.decode_ledger_header("", file)
        frame = frames.decode_frame_header(ledger.salt, size, header)
        assert frame is not None
        last = frame.sequence + frame.records - 1
        self._mark.write(0, frames.encode_mark(ledger.salt, ledger.ledger_id, last, self._end))
        self._mark.sync()
        return held

    return append


MUTANTS: dict[str, Mutant] = {
    "acknowledge-unsynced-entries": Mutant(
        "a subscription receives acknowledgements of entries that aren't synced",
        ((SubscriptionChannel, "acknowledge", _acknowledge_at_once),),
        within=200,
        relaxed=True,
    ),
    "omit-the-lag": Mutant(
        "a frame records that everything before it is synced",
        ((frames, "encode_frame", _omit_the_lag),),
        within=200,
        relaxed=True,
    ),
    "delay-all-commits": Mutant(
        "names, ends and any number of entries wait for the timer",
        ((Journal, "_may_wait", _let_all_wait),),
        within=200,
        relaxed=True,
    ),
    "roll-over-unsynced": Mutant(
        "a ledger is sealed before it is synced",
        ((Journal, "roll", _roll_unsynced),),
        within=200,
        relaxed=True,
    ),
    "mark-unsynced-frames": Mutant(
        "a ledger's mark covers written frames that aren't synced",
        ((_MemoryWriter, "append_unsynced", _mark_unsynced_frames),),
        within=200,
        relaxed=True,
    ),
}
