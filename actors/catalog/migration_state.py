"""The catalog's state of tenant migrations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Phase(StrEnum):
    """The phase of a migration; see `velaray.actors.catalog.migrations`."""

    BEGUN = "begun"
    """Objects of the tenant are being created at the target."""
    REPLICATING = "replicating"
    """Everything is being replicated to the target."""
    FENCED = "fenced"
    """Clients can't publish or acknowledge here any more; the rest is being replicated."""
    DECIDED = "decided"
    """The target has everything and will become the tenant's home."""
    SWITCHED = "switched"
    """The target is the tenant's home; what remains here is being deleted."""
    DONE = "done"
    ROLLING_BACK = "rolling back"
    """The tenant stays here; its objects at the target are being deleted."""
    ROLLED_BACK = "rolled back"


OVER = frozenset({Phase.DONE, Phase.ROLLED_BACK})
FENCED = frozenset({Phase.FENCED, Phase.DECIDED, Phase.SWITCHED})
"""The phases in which nothing of the tenant may change here."""
REPLICATED = frozenset({Phase.REPLICATING, Phase.FENCED, Phase.DECIDED})
"""The phases in which everything is replicated to the target."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration of a tenant to another cluster.

    ``number`` identifies it in this catalog and is larger than those of earlier migrations, even of
    a catalog that was lost: it is derived from the time when it began. ``progress`` is the form in
    which subscriptions' progress goes to ``target``, ``max_lag`` the number of entries that may be
    missing there when the fence is put up, ``found`` the tenant's objects that were there before:
    itself, namespaces, topics. ``steps`` are the phases so far, with their times.
    """

    number: int
    target: str
    progress: str
    max_lag: int
    found: tuple[str, ...]
    steps: tuple[tuple[Phase, int], ...]
    why: str = ""

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self.steps[-1][0]

    @property
    def over(self) -> bool:
        """Whether the migration has ended."""
        return self.phase in OVER

    def at_ms(self, phase: Phase) -> int | None:
        """The time at which the migration reached a phase; None if it didn't."""
        return dict(self.steps).get(phase)


def rows_of(migrations: Mapping[str, Migration]) -> list[list[Any]]:
    """The rows of a checkpoint, by tenant."""
    return [
        [
            tenant,
            each.number,
            each.target,
            each.progress,
            each.max_lag,
            each.found,
            each.steps,
            each.why,
        ]
        for tenant, each in sorted(migrations.items())
    ]


def from_rows(rows: Sequence[Sequence[Any]]) -> dict[str, Migration]:
    """The inverse of `rows_of`."""
    return {
        tenant: Migration(
            number,
            target,
            progress,
            max_lag,
            tuple(found),
            tuple((Phase(phase), at_ms) for phase, at_ms in steps),
            problem,
        )
        for tenant, number, target, progress, max_lag, found, steps, problem in rows
    }


class Ending(StrEnum):
    """The outcome of a tenant's arrival; open until it ends."""

    EXPECTED = "expected"
    """The arrival is open: objects of the tenant may still be created."""
    STAYED = "stayed"
    LEFT = "left"
    """The migration was rolled back."""
    TAKEN_OVER = "taken over"
    """An administrator set the tenant's home meanwhile."""


@dataclass(frozen=True, slots=True)
class IncomingMigration:
    """The newest migration of a tenant to this cluster; ``number`` is the one at its ``source``.

    ``before`` is the tenant's home before this migration; "": no other cluster.
    """

    source: str
    number: int
    before: str
    ending: Ending = Ending.EXPECTED


def incoming_rows(incoming: Mapping[str, IncomingMigration]) -> list[list[Any]]:
    """The rows of a checkpoint, by tenant."""
    return [
        [tenant, each.source, each.number, each.before, each.ending]
        for tenant, each in sorted(incoming.items())
    ]


def incoming_from(rows: Sequence[Sequence[Any]]) -> dict[str, IncomingMigration]:
    """The inverse of `incoming_rows`."""
    return {
        tenant: IncomingMigration(source, number, before, Ending(ending))
        for tenant, source, number, before, ending in rows
    }
