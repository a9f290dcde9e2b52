"""Tenants that move to another cluster: rules of the catalog's machine.

A migration is a saga: each phase is an event, and the driver
(`velaray.geo.tenant_migration.migration_driver`) repeats each step after a crash. It begins while
this cluster is the tenant's home. It ends in phase ``done`` (the target is the home, nothing is
left here) or ``rolled back`` (everything is as before). It can be rolled back until phase
``decided``, which is one event of this catalog.

Until a migration ends, nothing of the tenant can be deleted; behind the fence nothing can be
created or changed either. The newest migration of each tenant is kept after its end.

Commands: `BeginMigration`, `AdvanceMigration`, `RollBackMigration`. Events: MigrationBegun,
MigrationAdvanced. The event of phase ``switched`` makes the target the tenant's home.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from velaray.actors.catalog.erasable import moving_problem
from velaray.actors.catalog.migration_state import FENCED, REPLICATED, Migration, Phase
from velaray.actors.catalog.state import Catalog, Progress
from velaray.actors.machine import Decision, Reason, Refusal, refuse, require
from velaray.events.events_pb2 import MigrationAdvanced, MigrationBegun

NEXT: Mapping[Phase, frozenset[Phase]] = {
    Phase.BEGUN: frozenset({Phase.REPLICATING, Phase.ROLLING_BACK}),
    Phase.REPLICATING: frozenset({Phase.FENCED, Phase.ROLLING_BACK}),
    Phase.FENCED: frozenset({Phase.DECIDED, Phase.ROLLING_BACK}),
    Phase.DECIDED: frozenset({Phase.SWITCHED}),
    Phase.SWITCHED: frozenset({Phase.DONE}),
    Phase.ROLLING_BACK: frozenset({Phase.ROLLED_BACK}),
    Phase.DONE: frozenset(),
    Phase.ROLLED_BACK: frozenset(),
}


@dataclass(frozen=True, slots=True)
class BeginMigration:
    """Begin to move a tenant, whose home is this cluster, to another one. Replies `Done`.

    ``found`` names the tenant's objects that are there already; a roll-back keeps them.
    """

    tenant: str
    target: str
    progress: str = Progress.EXACT
    max_lag: int = 1000
    found: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AdvanceMigration:
    """Advance a migration to its next phase. Replies `Done`, also if it was there or beyond.

    Refused CONFLICT if it can't reach the phase any more, for example after a roll-back.
    """

    tenant: str
    number: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class RollBackMigration:
    """Roll a migration back. Replies `Done`; refused CONFLICT once it's decided."""

    tenant: str
    why: str


def current(state: Catalog, tenant: str) -> Migration | None:
    """The open migration of a tenant; None if there is none."""
    found = state.migrations.get(tenant)
    return None if found is None or found.over else found


def target_of(state: Catalog, tenant: str) -> Migration | None:
    """The migration of a tenant in the phases that replicate everything; else None."""
    found = state.migrations.get(tenant)
    return found if found is not None and found.phase in REPLICATED else None


def is_fenced(state: Catalog, tenant: str) -> bool:
    """Whether a migration forbids all changes of a tenant."""
    found = state.migrations.get(tenant)
    return found is not None and found.phase in FENCED


def decide_begin(state: Catalog, command: BeginMigration, now_ms: int) -> Decision | None:
    """The decision on `BeginMigration`; None if an equal one has begun."""
    tenant, target = command.tenant, command.target
    running = current(state, tenant)
    if running is not None:
        same = (running.target, running.progress, running.max_lag)
        if same == (target, command.progress, command.max_lag):
            return None
        problem = f"tenant {tenant} is moving to cluster {running.target} (phase {running.phase})"
        return refuse(Reason.CONFLICT, f"{problem}: wait for the end, or roll it back")
    if tenant not in state.tenants:
        return refuse(Reason.NOT_FOUND, f"no tenant {tenant}")
    if target not in state.clusters:
        return refuse(Reason.NOT_FOUND, f"no cluster {target!r}: register it first")
    if target == state.own:
        return refuse(Reason.NOT_ALLOWED, f"cluster {target} is this one: tenant {tenant} is here")
    if home := state.homes.get(tenant):
        problem = f"the home of tenant {tenant} is cluster {home}: migrate it from there"
        return refuse(Reason.NOT_ALLOWED, problem)
    if refusal := moving_problem(state, tenant):
        return Decision(reply=refusal)
    if command.progress not in tuple(Progress):
        choices = " or ".join(Progress)
        return refuse(Reason.INVALID, f"progress must be {choices}, not {command.progress[:40]!r}")
    if command.max_lag < 0:
        return refuse(Reason.INVALID, f"max_lag must be 0 or more, not {command.max_lag}")
    begun = MigrationBegun(
        tenant=tenant,
        migration=max(state.next_migration, now_ms),
        target=target,
        progress=command.progress,
        max_lag=command.max_lag,
        found=sorted(command.found),
        at_ms=now_ms,
    )
    return Decision((begun,))


def decide_advance(state: Catalog, command: AdvanceMigration, now_ms: int) -> Decision | None:
    """The decision on `AdvanceMigration`; None if the migration is there."""
    tenant, phase = command.tenant, command.phase
    found = state.migrations.get(tenant)
    if found is None or found.number != command.number:
        return refuse(Reason.NOT_FOUND, f"no migration {command.number} of tenant {tenant}")
    if found.at_ms(phase) is not None:
        return None
    if phase not in NEXT[found.phase] or phase is Phase.ROLLING_BACK:
        problem = f"the migration of tenant {tenant} is {found.phase}: it can't be {phase} now"
        return refuse(Reason.CONFLICT, problem)
    return Decision((MigrationAdvanced(tenant=tenant, phase=phase, at_ms=now_ms),))


def decide_roll_back(state: Catalog, command: RollBackMigration, now_ms: int) -> Decision | None:
    """The decision on `RollBackMigration`; None if the roll-back has begun or ended."""
    tenant = command.tenant
    found = state.migrations.get(tenant)
    if found is None:
        return refuse(Reason.NOT_FOUND, f"tenant {tenant} isn't moving")
    if found.phase in (Phase.ROLLING_BACK, Phase.ROLLED_BACK):
        return None
    if Phase.ROLLING_BACK not in NEXT[found.phase]:
        problem = f"tenant {tenant} has moved to cluster {found.target} (phase {found.phase})"
        return refuse(Reason.CONFLICT, f"{problem}: to move it back, migrate it from there")
    rolling = MigrationAdvanced(
        tenant=tenant, phase=Phase.ROLLING_BACK, at_ms=now_ms, why=command.why
    )
    return Decision((rolling,))


def evolve_begun(state: Catalog, event: MigrationBegun) -> None:
    """Apply the event."""
    state.migrations[event.tenant] = Migration(
        event.migration,
        event.target,
        event.progress,
        event.max_lag,
        tuple(event.found),
        ((Phase.BEGUN, event.at_ms),),
    )
    state.next_migration = event.migration + 1


def evolve_advanced(state: Catalog, event: MigrationAdvanced) -> None:
    """Apply the event."""
    found = state.migrations[event.tenant]
    steps = (*found.steps, (Phase(event.phase), event.at_ms))
    state.migrations[event.tenant] = replace(found, steps=steps, why=event.why or found.why)
    if event.phase == Phase.SWITCHED:
        state.homes[event.tenant] = found.target


# -- restrictions during a migration -----------------------------------------------


def keeps_all(state: Catalog, tenant: str, *, to_the_end: bool = False) -> Refusal | None:
    """The reason why a migration forbids deletions of a tenant's objects; with ``to_the_end`` also
    of the tenant itself, and changes of its home."""
    found = current(state, tenant)
    if found is None or (found.phase is Phase.SWITCHED and not to_the_end):
        return None
    problem = f"tenant {tenant} is moving to cluster {found.target} (phase {found.phase})"
    return Refusal(Reason.CONFLICT, f"{problem}: wait for the end, or roll it back")


def is_closed(state: Catalog, tenant: str) -> Refusal | None:
    """The reason why a migration forbids creating and changing a tenant's objects."""
    if not is_fenced(state, tenant):
        return None
    where = state.migrations[tenant].target
    return Refusal(Reason.UNAVAILABLE, f"tenant {tenant} is moving to cluster {where}: try again")


def check(state: Catalog) -> None:
    """Raise `InvariantViolation` naming the first broken invariant."""
    numbers = [each.number for each in state.migrations.values()]
    require(len(set(numbers)) == len(numbers), "no two migrations share a number")
    fresh = all(0 < number < state.next_migration for number in numbers)
    require(fresh, "the next migration's number is above all that were used")
    for tenant, each in state.migrations.items():
        phases = [phase for phase, _ in each.steps]
        begun = phases[:1] == [Phase.BEGUN]
        allowed = begun and all(after in NEXT[before] for before, after in pairwise(phases))
        require(allowed, "a migration goes from phase to phase", f"{tenant}: {phases}")
        if each.over:
            continue
        elsewhere = each.target in state.clusters and each.target != state.own
        require(elsewhere, "a tenant moves to another cluster, a registered one", tenant)
        require(tenant in state.tenants, "a tenant that moves exists", tenant)
        home = each.target if each.phase is Phase.SWITCHED else None
        at_home = state.homes.get(tenant) == home
        require(at_home, "the home of a moving tenant is this cluster until the switch", tenant)
