"""Tenants that arrive from another cluster: rules of the catalog's machine, at the target.

The catalog expects a tenant before anything of it is created here. From then on requests of its
clients are redirected to the source. The arrival ends in one of two ways: the tenant stays, and
this cluster is its home; or what was created is deleted, and its home is what it was. After that
nothing is created for this migration any more, not even by a late request. If an administrator
makes this cluster the tenant's home meanwhile, because the source is lost, the arrival ends as
taken over.

Commands: `ExpectTenant`, `EndIncomingMigration`. Events: TenantExpected, TenantArrived.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeGuard

from velaray.actors.catalog.migration_state import Ending, IncomingMigration
from velaray.actors.catalog.state import Catalog
from velaray.actors.machine import Decision, Reason, refuse, require
from velaray.events.events_pb2 import TenantArrived, TenantExpected
from velaray.events.ids import check_name


@dataclass(frozen=True, slots=True)
class ExpectTenant:
    """Expect a tenant, whose home is still the source. Replies `Done`.

    Refused CONFLICT if this migration is over, or another cluster's tenant would be overwritten.
    """

    tenant: str
    source: str
    number: int


@dataclass(frozen=True, slots=True)
class EndIncomingMigration:
    """End an arrival: the tenant ``stays``, with this cluster as its home, or it doesn't. Replies
    `Done`.

    Refused CONFLICT if that migration ended with the other outcome.
    """

    tenant: str
    source: str
    number: int
    stays: bool


def decide_expect(state: Catalog, command: ExpectTenant) -> Decision | None:
    """The decision on `ExpectTenant`; None if the tenant is expected."""
    tenant, source = check_name("tenant", command.tenant), command.source
    if source not in state.clusters or source == state.own:
        return refuse(Reason.NOT_FOUND, f"no other cluster {source!r} is known here: register it")
    known, home = state.incoming.get(tenant), state.homes.get(tenant, "")
    if known is not None and known.source == source and command.number <= known.number:
        if known.ending is Ending.EXPECTED and command.number == known.number:
            return None
        return refuse(Reason.CONFLICT, _over(tenant, known))
    if home not in ("", source):
        return refuse(Reason.CONFLICT, f"the home of tenant {tenant} is cluster {home}")
    if is_expected(known) and known.source != source:
        problem = f"tenant {tenant} is on its way here from cluster {known.source}"
        return refuse(Reason.CONFLICT, problem)
    expected = TenantExpected(tenant=tenant, source=source, migration=command.number)
    return Decision((expected,))


def _over(tenant: str, known: IncomingMigration) -> str:
    return f"migration {known.number} of tenant {tenant} to here is over: {known.ending}"


def is_expected(incoming_migration: IncomingMigration | None) -> TypeGuard[IncomingMigration]:
    """Whether the arrival is open."""
    return incoming_migration is not None and incoming_migration.ending is Ending.EXPECTED


def decide_end(state: Catalog, command: EndIncomingMigration) -> Decision | None:
    """The decision on `EndIncomingMigration`; None if it ended with that outcome."""
    tenant, known = command.tenant, state.incoming.get(command.tenant)
    if known is None or (known.source, known.number) != (command.source, command.number):
        problem = f"cluster {command.source} has no such migration of tenant {tenant} to here"
        return refuse(Reason.CONFLICT, problem)
    if is_expected(known):
        return Decision((TenantArrived(tenant=tenant, stayed=command.stays),))
    if known.ending is not (Ending.STAYED if command.stays else Ending.LEFT):
        return refuse(Reason.CONFLICT, _over(tenant, known))
    return None


def evolve_expected(state: Catalog, event: TenantExpected) -> None:
    """Apply the event."""
    tenant, before = event.tenant, state.homes.get(event.tenant, "")
    earlier = state.incoming.get(tenant)
    if is_expected(earlier):
        before = earlier.before
    state.incoming[tenant] = IncomingMigration(event.source, event.migration, before)
    state.homes[tenant] = event.source


def evolve_arrived(state: Catalog, event: TenantArrived) -> None:
    """Apply the event."""
    incoming_migration = state.incoming[event.tenant]
    ending = Ending.STAYED if event.stayed else Ending.LEFT
    state.incoming[event.tenant] = replace(incoming_migration, ending=ending)
    if event.stayed or not incoming_migration.before:
        del state.homes[event.tenant]
    else:
        state.homes[event.tenant] = incoming_migration.before


def taken_over(state: Catalog, tenant: str) -> None:
    """End an open arrival: an administrator set the tenant's home."""
    incoming_migration = state.incoming.get(tenant)
    if is_expected(incoming_migration):
        state.incoming[tenant] = replace(incoming_migration, ending=Ending.TAKEN_OVER)


def check(state: Catalog) -> None:
    """Raise `InvariantViolation` naming the first broken invariant."""
    for tenant, each in state.incoming.items():
        at_source = not is_expected(each) or state.homes.get(tenant) == each.source
        require(at_source, "the home of an expected tenant is the source", tenant)
