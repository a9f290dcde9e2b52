"""Deliberate bugs, for tests only: each must be found by simulation."""

from __future__ import annotations

from tests.sim.mutants import (
    actors,
    admin,
    client,
    compaction,
    cursors,
    geo,
    history,
    hosts,
    journal,
    key_shared,
    ledgers,
    machines,
    rates,
    relaxed,
    schemas,
    segments,
    stores,
    topology,
    transactions,
    trimming,
)
from tests.sim.mutants.mutant import Mutant

MUTANTS: dict[str, Mutant] = {
    **journal.MUTANTS,
    **actors.MUTANTS,
    **admin.MUTANTS,
    **topology.MUTANTS,
    **client.MUTANTS,
    **segments.MUTANTS,
    **cursors.MUTANTS,
    **trimming.MUTANTS,
    **history.MUTANTS,
    **relaxed.MUTANTS,
    **compaction.MUTANTS,
    **key_shared.MUTANTS,
    **transactions.MUTANTS,
    **schemas.MUTANTS,
    **ledgers.MUTANTS,
    **geo.MUTANTS,
    **hosts.MUTANTS,
    **rates.MUTANTS,
    **stores.MUTANTS,
    **machines.MUTANTS,
}
