"""Bugs of reading history."""

from __future__ import annotations

from typing import Any

from tests.sim.mutants.mutant import Mutant, do_nothing
from velaray.broker import history
from velaray.broker.history import PointInTime
from velaray.broker.subscription import undoing
from velaray.events.events_pb2 import MarkDeleted


def _begin_too_late(original: Any) -> Any:
    return lambda ledgers, moment: ledgers[-1]


def _go_too_far(original: Any) -> Any:
    def is_before(self: PointInTime, sequence: int, at_ms: int) -> bool:
        return original(self, sequence - 1, at_ms)

    return is_before


def _keep_skips(original: Any) -> Any:
    return lambda event: "" if isinstance(event, MarkDeleted) else original(event)


MUTANTS: dict[str, Mutant] = {
    "begin-the-past-in-the-newest-ledger": Mutant(
        "a past state is read from the newest checkpoint, for any point in time",
        ((history, "_ledger_of", _begin_too_late),),
        within=20,
    ),
    "see-one-event-of-the-future": Mutant(
        "a past state contains the next event",
        ((PointInTime, "is_before", _go_too_far),),
        within=20,
    ),
    "undo-acknowledgements-too": Mutant(
        "undoing a move also undoes later acknowledgements",
        ((undoing, "keep", do_nothing),),
        within=20,
    ),
    "take-a-skip-for-an-ack": Mutant(
        "a skip counts as an acknowledgement, so that an earlier move is undone",
        ((undoing, "move_of", _keep_skips),),
        within=50,
    ),
}
