"""What the catalog knows of tenants that move to another cluster, or moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Phase(StrEnum):
    """How far a migration is; see `velaray.actors.catalog.migrations`."""

    BEGUN = "begun"
    """What the tenant has is being made at the target."""
    REPLICATING = "replicating"
    """Everything is replicated there, and goes on to be."""
    FENCED = "fenced"
    """Nothing more is published or acknowledged here; the rest goes there."""
    DECIDED = "decided"
    """The target has everything: the tenant will be at home there, whatever happens."""
    SWITCHED = "switched"
    """The tenant is at home there; what is left of it here is being deleted."""
    DONE = "done"
    ROLLING_BACK = "rolling back"
    """It stays here; what was made there is being deleted."""
    ROLLED_BACK = "rolled back"


OVER = frozenset({Phase.DONE, Phase.ROLLED_BACK})
FENCED = frozenset({Phase.FENCED, Phase.DECIDED, Phase.SWITCHED})
"""In these nothing of the tenant may change here."""
REPLICATED = frozenset({Phase.REPLICATING, Phase.FENCED, Phase.DECIDED})
"""In these everything goes to the target."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration of a tenant away from here; ``number`` tells it from all others of this
    catalog, and is larger than those of earlier ones, also of a catalog that was lost: it is the
    time when it began, or somewhat more.

    ``progress`` says in which form subscriptions' progress goes to ``target``, ``max_lag`` how
    many entries may be missing there when the fence is put up, ``found`` what of the tenant was
    there before: itself, namespaces, topics. ``steps`` are the phases so far, with their times.
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
        """How far it is."""
        return self.steps[-1][0]

    @property
    def over(self) -> bool:
        """Whether nothing is left to be done."""
        return self.phase in OVER

    def at_ms(self, phase: Phase) -> int | None:
        """When it came to a phase; None if it didn't."""
        return dict(self.steps).get(phase)


def rows_of(migrations: Mapping[str, Migration]) -> list[list[Any]]:
    """As a checkpoint keeps them, by tenant."""
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
            why,
        )
        for tenant, number, target, progress, max_lag, found, steps, why in rows
    }


class Ending(StrEnum):
    """How the arrival of a tenant ended, if it did."""

    EXPECTED = "expected"
    """It didn't: things may still be made for it."""
    STAYED = "stayed"
    LEFT = "left"
    """The migration was rolled back."""
    TAKEN_OVER = "taken over"
    """Somebody else said where the tenant is at home."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """The newest migration of a tenant to here: the number that it has at its ``source``.

    ``before`` is the cluster where the tenant was at home for this one, "": nowhere else.
    """

    source: str
    number: int
    before: str
    ending: Ending = Ending.EXPECTED


def arrival_rows(arrivals: Mapping[str, Arrival]) -> list[list[Any]]:
    """As a checkpoint keeps them, by tenant."""
    return [
        [tenant, each.source, each.number, each.before, each.ending]
        for tenant, each in sorted(arrivals.items())
    ]


def arrivals_from(rows: Sequence[Sequence[Any]]) -> dict[str, Arrival]:
    """The inverse of `arrival_rows`."""
    return {
        tenant: Arrival(source, number, before, Ending(ending))
        for tenant, source, number, before, ending in rows
    }
