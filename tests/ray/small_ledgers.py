"""What processes of Ray call first so that ledgers are small: many come and go in little time."""

from __future__ import annotations

from functools import partial

from velaray.broker import journaled_actor
from velaray.broker.garbage_collection import ledger_keeper
from velaray.journal.journal import JournalSettings
from velaray.topology import stores

RECORDS = 20
"""So many records, and a journal rolls over."""


def shrink() -> None:
    """Have every journal of this process roll over soon, and keep little."""
    stores.JournalSettings = partial(JournalSettings, roll_records=RECORDS)  # type: ignore[misc]
    ledger_keeper.ROLL_BYTES = 2_000
    journaled_actor.HISTORY_BYTES = 8_000  # type: ignore[attr-defined]
