"""Tenants that come: nothing is made for a migration that is over, however late it asks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.actors.test_catalog import FLIGHTS, created, started
from tests.actors.test_clusters import THERE
from velaray.actors.catalog.clusters import DeleteCluster, SetTenantHome, home_of
from velaray.actors.catalog.machine import CatalogMachine, Done, EnsureTopic
from velaray.actors.catalog.migration_state import Ending, IncomingMigration, Phase
from velaray.actors.catalog.migration_target import EndIncomingMigration, ExpectTenant
from velaray.actors.catalog.migrations import AdvanceMigration, BeginMigration
from velaray.actors.catalog.state import Catalog
from velaray.actors.machine import InvariantViolation, Reason
from velaray.events.events_pb2 import (
    ClusterRegistered,
    TenantArrived,
    TenantExpected,
    TenantHomeSet,
)

YONDER = ClusterRegistered(
    name="yonder", service_url="pulsar://c:1", admin_url="http://c:2", progress="exact"
)
EXPECTED = TenantExpected(tenant="acme", source="there", migration=7)
EXPECT = ExpectTenant("acme", "there", 7)
STAYS, LEAVES = (
    EndIncomingMigration("acme", "there", 7, True),
    EndIncomingMigration("acme", "there", 7, False),
)


def incoming_migration(state: Catalog) -> IncomingMigration:
    return state.incoming["acme"]


def test_an_expected_tenant_keeps_its_source_as_home_until_it_arrives() -> None:
    (
        started(THERE)
        .when(EXPECT)
        .then(events=[EXPECTED], reply=Done(True))
        .then_state(lambda s: home_of(s, "acme") == "there")
        .when(EXPECT)
        .then(events=[], reply=Done(False))
        .when(STAYS)
        .then(events=[TenantArrived(tenant="acme", stayed=True)], reply=Done(True))
        .then_state(lambda s: home_of(s, "acme") is None)
        .when(STAYS)
        .then(events=[], reply=Done(False))
        .when(LEAVES)
        .then_refused(Reason.CONFLICT, "is over: stayed")
        .when(EXPECT)
        .then_refused(Reason.CONFLICT, "migration 7 of tenant acme to here is over: stayed")
    )


def test_an_expected_tenant_that_does_not_arrive_keeps_its_former_home() -> None:
    left = TenantArrived(tenant="acme")
    history = started(THERE).when(EXPECT).when(LEAVES).then(events=[left], reply=Done(True))
    history.then_state(lambda s: home_of(s, "acme") is None)
    history.when(LEAVES).then(events=[], reply=Done(False))
    history.when(STAYS).then_refused(Reason.CONFLICT, "is over: left")
    routed = started(THERE, TenantHomeSet(tenant="acme", cluster="there"))
    routed.when(EXPECT).when(LEAVES).then_state(lambda s: home_of(s, "acme") == "there")


def test_late_requests_of_a_finished_migration_are_refused() -> None:
    history = started(THERE).when(EXPECT).when(LEAVES)
    history.when(EXPECT).then_refused(Reason.CONFLICT, "is over: left")
    history.when(ExpectTenant("acme", "there", 8)).then(reply=Done(True))
    history.when(EXPECT).then_refused(Reason.CONFLICT, "migration 8")
    history.when(LEAVES).then_refused(Reason.CONFLICT, "has no such migration")
    history.when(STAYS).then_refused(Reason.CONFLICT, "has no such migration")


def test_a_later_migration_from_the_same_cluster_replaces_an_unfinished_one() -> None:
    history = started(THERE).when(EXPECT).when(ExpectTenant("acme", "there", 9))
    history.then(reply=Done(True)).when(EndIncomingMigration("acme", "there", 9, False))
    history.then_state(lambda s: home_of(s, "acme") is None)


def test_incoming_migrations_that_are_not_allowed_are_refused() -> None:
    started().when(EXPECT).then_refused(Reason.NOT_FOUND, "no other cluster 'there'")
    own = ExpectTenant("acme", "here", 1)
    started().when(own).then_refused(Reason.NOT_FOUND, "no other cluster 'here'")
    bad = ExpectTenant("bad/name", "there", 1)
    started(THERE).when(bad).then_refused(Reason.INVALID, "bad/name")
    system = ExpectTenant("pulsar", "there", 1)
    started(THERE).when(system).then_refused(Reason.NOT_ALLOWED, "belongs to the system")
    settled = started(THERE, YONDER, TenantHomeSet(tenant="acme", cluster="yonder"))
    settled.when(EXPECT).then_refused(Reason.CONFLICT, "is cluster yonder")
    history = started(THERE, YONDER).when(EXPECT)
    # From there it isn't at home here.
    history.when(ExpectTenant("acme", "yonder", 9)).then_refused(
        Reason.CONFLICT, "the home of tenant"
    )


def test_a_tenant_that_is_moving_away_is_not_expected() -> None:
    history = started(THERE, YONDER).when(BeginMigration("public", "yonder"), 1)
    history.when(ExpectTenant("public", "there", 9))
    history.then_refused(Reason.CONFLICT, "moving to cluster yonder")


def test_a_tenant_that_was_taken_over_cannot_arrive_any_more() -> None:
    history = started(THERE).when(EXPECT).when(SetTenantHome("acme", "there"))
    history.then(events=[], reply=Done(False)).then_state(lambda s: home_of(s, "acme") == "there")
    history.when(SetTenantHome("acme", "here")).then(reply=Done(True))
    history.then_state(
        lambda s: incoming_migration(s) == IncomingMigration("there", 7, "", Ending.TAKEN_OVER)
    )
    for command in (EXPECT, STAYS, LEAVES):
        history.when(command).then_refused(Reason.CONFLICT, "is over: taken over")
    history.then_state(lambda s: home_of(s, "acme") is None)


def test_the_source_cluster_is_not_deleted_while_a_tenant_is_expected() -> None:
    history = started(THERE).when(EXPECT).when(DeleteCluster("there"))
    history.then_refused(Reason.NOT_ALLOWED, "it is the home of tenant acme")


def test_clients_of_an_expected_tenant_create_no_topics() -> None:
    history = started(THERE).when(ExpectTenant("public", "there", 7))
    history.when(EnsureTopic(FLIGHTS, at_home=True)).then(events=[])
    history.when(EnsureTopic(FLIGHTS)).then(events=[created()])


def test_a_tenant_that_arrived_may_move_away_and_return() -> None:
    history = started(THERE).when(ExpectTenant("public", "there", 7))
    history.when(EndIncomingMigration("public", "there", 7, True))
    history.when(BeginMigration("public", "there"), 5).then(reply=Done(True))
    way = (Phase.REPLICATING, Phase.FENCED, Phase.DECIDED, Phase.SWITCHED, Phase.DONE)
    for phase in way:
        history.when(AdvanceMigration("public", 5, phase)).then(reply=Done(True))
    history.when(ExpectTenant("public", "there", 8)).then(reply=Done(True))
    history.then_state(lambda s: s.incoming["public"].before == "there")


def test_incoming_migrations_survive_a_checkpoint() -> None:
    machine = CatalogMachine()
    for end in (None, STAYS, LEAVES, SetTenantHome("acme", "here")):
        history = started(THERE).when(EXPECT)
        if end is not None:
            history.when(end)
        assert machine.restore(machine.snapshot(history.state)) == history.state


def _at_home_here(state: Catalog) -> None:
    del state.homes["acme"]


@pytest.mark.parametrize(
    ("spoil", "invariant"),
    [(_at_home_here, "the home of an expected tenant is the source")],
)
def test_each_invariant_catches_its_breach(
    spoil: Callable[[Catalog], None], invariant: str
) -> None:
    history = started(THERE).when(EXPECT)
    spoil(history.state)
    with pytest.raises(InvariantViolation, match=invariant):
        history.machine.check(history.state)
