"""The ledger audit: compares stored ledgers with the manifests and with the deletion topics.

Every ledger is in one state. *listed*: in its journal's manifest. *creating*: stored and not
listed yet. *pending*: unlisted, and its deletion event waits for a garbage collector.
*dead-letter*: unlisted, and its event was given up. *orphan*: unlisted, without an event, so it is
never deleted. *missing*: listed, and not stored. There should be none of the last two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum

from velaray.journal.manifest import LedgerInfo, Manifest


class State(StrEnum):
    """The state of a ledger."""

    LISTED = "listed"
    CREATING = "creating"
    PENDING = "pending"
    DEAD = "dead-letter"
    ORPHAN = "orphan"
    MISSING = "missing"


LOST = (State.ORPHAN, State.MISSING)

Name = tuple[str, int]
"""A journal and the id of one of its ledgers."""


@dataclass(frozen=True, slots=True)
class Journal:
    """A journal in the store: its manifest, and the sizes of its ledgers."""

    key: str
    manifest: Manifest | None
    stored: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Counted:
    """One ledger, as found by the audit."""

    journal: str
    ledger_id: int
    state: State
    bytes: int

    @property
    def name(self) -> Name:
        """The journal and the id."""
        return self.journal, self.ledger_id

    @property
    def kind(self) -> str:
        """The kind of the actor that owns it."""
        return self.journal.split("/")[0]


def count(
    journals: Iterable[Journal], pending: AbstractSet[Name], dead: AbstractSet[Name]
) -> list[Counted]:
    """The state of every ledger that is stored or listed, by journal and id.

    ``pending`` are the ledgers with events that wait, ``dead`` those with dead letters.
    """
    found = []
    for journal in sorted(journals, key=lambda journal: journal.key):
        listed = {info.ledger_id: info for info in _listed(journal)}
        for ledger_id in sorted(listed.keys() | journal.stored.keys()):
            name = journal.key, ledger_id
            if ledger_id not in journal.stored:
                state, size = State.MISSING, listed[ledger_id].bytes
            else:
                state, size = _state(journal, name, pending, dead), journal.stored[ledger_id]
            found.append(Counted(*name, state, size))
    return found


def _listed(journal: Journal) -> Sequence[LedgerInfo]:
    return () if journal.manifest is None else journal.manifest.ledgers


def _state(
    journal: Journal, name: Name, pending: AbstractSet[Name], dead: AbstractSet[Name]
) -> State:
    manifest, ledger_id = journal.manifest, name[1]
    if any(info.ledger_id == ledger_id for info in _listed(journal)):
        return State.LISTED
    alive = manifest is not None and not manifest.dead
    if manifest is not None and alive and ledger_id >= manifest.ledger_id(manifest.next_index):
        return State.CREATING
    if name in pending:
        return State.PENDING
    return State.DEAD if name in dead else State.ORPHAN


@dataclass(frozen=True, slots=True)
class Unread:
    """A journal whose manifest can't be read; the state of its ledgers is unknown."""

    journal: str
    why: str


@dataclass(frozen=True, slots=True)
class LedgerAudit:
    """The audited ledgers, and the journals that couldn't be read."""

    ledgers: Sequence[Counted]
    unread: Sequence[Unread] = ()

    def of(self, *states: State) -> list[Counted]:
        """The ledgers in these states."""
        return [each for each in self.ledgers if each.state in states]

    def totals(self) -> dict[str, dict[str, int]]:
        """Numbers of ledgers and bytes by state, for every state."""
        return _totals(self.ledgers)

    def kinds(self) -> dict[str, dict[str, dict[str, int]]]:
        """`totals` by kind of actor."""
        kinds = sorted({each.kind for each in self.ledgers})
        return {kind: _totals(each for each in self.ledgers if each.kind == kind) for kind in kinds}


def _totals(ledgers: Iterable[Counted]) -> dict[str, dict[str, int]]:
    numbers: Counter[State] = Counter()
    sizes: Counter[State] = Counter()
    for each in ledgers:
        numbers[each.state] += 1
        sizes[each.state] += each.bytes
    return {str(state): {"ledgers": numbers[state], "bytes": sizes[state]} for state in State}
