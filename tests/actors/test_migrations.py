"""Tenants that move: a saga whose end is open until it's decided, and never afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.actors.test_catalog import DEFAULT, FLIGHTS, created, started
from tests.actors.test_clusters import THERE
from velaray.actors.catalog.clusters import DeleteCluster, SetTenantHome, home_of
from velaray.actors.catalog.deleted_topics import UndeleteTopic
from velaray.actors.catalog.machine import (
    CatalogMachine,
    CreateNamespace,
    CreateTopic,
    DeleteNamespace,
    DeleteTenant,
    DeleteTopic,
    Done,
    EnsureTopic,
    GrowPartitions,
    RemovePolicy,
    SetPolicy,
    SetTopicProperties,
    UpdateTenant,
)
from velaray.actors.catalog.migration_state import Migration, Phase
from velaray.actors.catalog.migrations import (
    NEXT,
    AdvanceMigration,
    BeginMigration,
    RollBackMigration,
    current,
    is_fenced,
    target_of,
)
from velaray.actors.catalog.state import Catalog, Scope
from velaray.actors.machine import InvariantViolation, Reason
from velaray.actors.testing import History
from velaray.events.events_pb2 import (
    ClusterDeleted,
    MigrationAdvanced,
    MigrationBegun,
    NamespaceDeleted,
    TenantDeleted,
    TenantHomeSet,
    TopicDeleted,
)
from velaray.events.ids import TopicName

BEGIN = BeginMigration("public", "there", found=("public",))
BEGUN = MigrationBegun(
    tenant="public",
    migration=1,
    target="there",
    progress="exact",
    max_lag=1000,
    found=["public"],
    at_ms=1,
)
HOME = TenantHomeSet(tenant="public", cluster="there")
FORWARD = (Phase.REPLICATING, Phase.FENCED, Phase.DECIDED, Phase.SWITCHED, Phase.DONE)
OTHER = TopicName.parse("other")


def advanced(phase: Phase, why: str = "") -> MigrationAdvanced:
    return MigrationAdvanced(tenant="public", phase=phase, at_ms=1, why=why)


def advance(phase: Phase, number: int = 1) -> AdvanceMigration:
    return AdvanceMigration("public", number, phase)


def moving(phase: Phase, *before: Any) -> History[Catalog]:
    """A migration in a phase that it came to by the way forward."""
    history = started(THERE, created(), *before).when(BEGIN, 1)
    for each in FORWARD[: FORWARD.index(phase) + 1] if phase in FORWARD else ():
        history.when(advance(each), 1).then(reply=Done(True))
    return history


def test_a_migration_passes_through_its_phases_and_switching_sets_the_tenants_home() -> None:
    history = started(THERE).when(BEGIN, 1).then(events=[BEGUN], reply=Done(True))
    for phase in FORWARD:
        history.when(advance(phase), 1).then(events=[advanced(phase)], reply=Done(True))
        history.when(advance(phase), 2).then(events=[], reply=Done(False))
    history.then_state(lambda s: home_of(s, "public") == "there" and not current(s, "public"))
    found = history.state.migrations["public"]
    steps = tuple((phase, 1) for phase in (Phase.BEGUN, *FORWARD))
    assert found == Migration(1, "there", "exact", 1000, ("public",), steps)
    assert (found.at_ms(Phase.FENCED), found.at_ms(Phase.ROLLED_BACK)) == (1, None)


def test_a_later_migration_has_a_larger_number_even_after_the_catalog_was_lost() -> None:
    history = started(THERE).when(BEGIN, 5000)
    for phase in FORWARD:
        history.when(advance(phase, 5000), 5001).then(reply=Done(True))
    history.when(SetTenantHome("public", "here"))
    history.when(BEGIN, 4000)  # the clock went back
    assert history.state.migrations["public"].number == 5001
    fresh = started(THERE).when(BEGIN, 6000)
    assert fresh.state.migrations["public"].number == 6000


def test_a_late_step_changes_nothing() -> None:
    history = moving(Phase.FENCED)
    history.when(advance(Phase.REPLICATING)).then(events=[], reply=Done(False))
    history.when(advance(Phase.FENCED, 2)).then_refused(Reason.NOT_FOUND, "no migration 2")
    history.when(RollBackMigration("public", "")).when(advance(Phase.ROLLED_BACK))
    history.when(BEGIN, 2).then(reply=Done(True))
    history.when(advance(Phase.DECIDED)).then_refused(Reason.NOT_FOUND, "no migration 1")
    history.then_state(lambda s: s.migrations["public"].phase is Phase.BEGUN)


@pytest.mark.parametrize("phase", [Phase.BEGUN, Phase.REPLICATING, Phase.FENCED])
def test_an_undecided_migration_can_be_rolled_back(phase: Phase) -> None:
    history = moving(phase).when(RollBackMigration("public", "asked to"), 1)
    history.then(events=[advanced(Phase.ROLLING_BACK, "asked to")], reply=Done(True))
    history.when(RollBackMigration("public", "again")).then(events=[], reply=Done(False))
    history.when(advance(Phase.DECIDED)).then_refused(Reason.CONFLICT, "rolling back")
    history.when(advance(Phase.ROLLED_BACK), 1).then(events=[advanced(Phase.ROLLED_BACK)])
    history.when(RollBackMigration("public", "")).then(events=[], reply=Done(False))
    history.then_state(lambda s: home_of(s, "public") is None and not current(s, "public"))
    assert history.state.migrations["public"].why == "asked to"
    history.when(BEGIN, 2).then(reply=Done(True))
    assert history.state.migrations["public"].number == 2


@pytest.mark.parametrize("phase", [Phase.DECIDED, Phase.SWITCHED, Phase.DONE])
def test_a_decided_migration_cannot_be_rolled_back(phase: Phase) -> None:
    history = moving(phase).when(RollBackMigration("public", ""))
    history.then_refused(Reason.CONFLICT, "has moved to cluster there")
    assert phase in str(history.reply.message)


def test_a_tenant_that_is_not_moving_cannot_be_rolled_back_or_advanced() -> None:
    started().when(RollBackMigration("public", "")).then_refused(Reason.NOT_FOUND, "isn't moving")
    started().when(advance(Phase.FENCED)).then_refused(Reason.NOT_FOUND, "no migration 1")


@pytest.mark.parametrize("phase", list(Phase))
def test_no_phase_is_skipped(phase: Phase) -> None:
    for number, reached in enumerate((Phase.BEGUN, *FORWARD)):
        history = moving(reached).when(advance(phase))
        if phase in (Phase.BEGUN, *FORWARD)[: number + 1]:
            history.then(events=[], reply=Done(False))
        elif phase in NEXT[reached] and phase is not Phase.ROLLING_BACK:
            history.then(reply=Done(True))
        else:
            history.then_refused(Reason.CONFLICT, f"it can't be {phase} now")


@pytest.mark.parametrize(
    ("command", "reason", "named"),
    [
        (BeginMigration("acme", "there"), Reason.NOT_FOUND, "no tenant acme"),
        (BeginMigration("public", "yonder"), Reason.NOT_FOUND, "register it first"),
        (BeginMigration("public", "here"), Reason.NOT_ALLOWED, "is this one"),
        (BeginMigration("pulsar", "there"), Reason.NOT_ALLOWED, "belongs to the system"),
        (BeginMigration("public", "there", "guessed"), Reason.INVALID, "guessed"),
        (BeginMigration("public", "there", max_lag=-1), Reason.INVALID, "max_lag"),
    ],
)
def test_migrations_that_are_impossible_are_refused(
    command: BeginMigration, reason: Reason, named: str
) -> None:
    started(THERE).when(command).then_refused(reason, named).then(events=[])


def test_a_tenant_with_another_home_must_be_migrated_from_there() -> None:
    started(THERE, HOME).when(BEGIN).then_refused(Reason.NOT_ALLOWED, "migrate it from there")


def test_a_tenant_moves_once_at_a_time() -> None:
    history = moving(Phase.REPLICATING)
    history.when(BEGIN).then(events=[], reply=Done(False))
    another = BeginMigration("public", "there", "snapshots")
    history.when(another).then_refused(Reason.CONFLICT, "phase replicating")


DELETIONS = (
    DeleteTopic(FLIGHTS),
    DeleteNamespace("public", "default", force=True),
    DeleteTenant("public"),
    UpdateTenant("public", (), ("here",)),
    SetTenantHome("public", "there"),
    DeleteCluster("there"),
)
CHANGES = (
    CreateTopic(OTHER),
    EnsureTopic(OTHER),
    EnsureTopic(OTHER, at_home=True),
    GrowPartitions(FLIGHTS, 2),
    SetTopicProperties(FLIGHTS, {"a": "1"}),
    UndeleteTopic(OTHER),
    CreateNamespace("public", "more"),
    SetPolicy(DEFAULT, "messageTTL", b"1"),
    RemovePolicy(Scope.of_topic(FLIGHTS), "messageTTL"),
)


@pytest.mark.parametrize("command", DELETIONS, ids=lambda each: type(each).__name__)
def test_nothing_of_a_moving_tenant_can_be_deleted(command: Any) -> None:
    for phase in (Phase.BEGUN, Phase.REPLICATING, Phase.FENCED, Phase.DECIDED):
        moving(phase).when(command).then_refused(Reason.CONFLICT, "is moving to cluster there")
    rolling = moving(Phase.FENCED).when(RollBackMigration("public", ""))
    rolling.when(command).then_refused(Reason.CONFLICT, "is moving")


def test_leftovers_of_a_switched_tenant_can_be_deleted_before_the_tenant() -> None:
    for command in DELETIONS[2:]:
        moving(Phase.SWITCHED).when(command).then_refused(Reason.CONFLICT, "is moving")
    gone = NamespaceDeleted(tenant="public", namespace="default")
    history = moving(Phase.SWITCHED).when(DELETIONS[1])
    history.then(events=[TopicDeleted(topic=str(FLIGHTS)), gone])
    history.when(advance(Phase.DONE)).when(DeleteTenant("public"))
    history.then(events=[TenantDeleted(tenant="public")])


@pytest.mark.parametrize("command", CHANGES, ids=lambda each: type(each).__name__)
def test_nothing_of_a_fenced_tenant_can_be_created_or_changed(command: Any) -> None:
    at_home = isinstance(command, EnsureTopic) and command.at_home
    for phase in (Phase.FENCED, Phase.DECIDED, *(() if at_home else (Phase.SWITCHED,))):
        history = moving(phase).when(command)
        history.then_refused(Reason.UNAVAILABLE, "moving to cluster there: try again")
    for phase in (Phase.BEGUN, Phase.REPLICATING):
        reply = moving(phase).when(command).reply
        assert getattr(reply, "reason", None) is not Reason.UNAVAILABLE


def test_after_the_switch_clients_are_redirected() -> None:
    asked = EnsureTopic(FLIGHTS, at_home=True)
    for phase in (Phase.FENCED, Phase.DECIDED):
        moving(phase).when(asked).then_refused(Reason.UNAVAILABLE)
    found = moving(Phase.SWITCHED).when(asked)
    assert getattr(found.reply, "reason", None) is not Reason.UNAVAILABLE


def test_a_fence_turns_clients_away_and_lets_replicators_find_existing_topics() -> None:
    history = moving(Phase.FENCED)
    history.when(EnsureTopic(FLIGHTS, at_home=True)).then_refused(Reason.UNAVAILABLE)
    history.when(EnsureTopic(FLIGHTS)).then(events=[])
    # Others' tenants are not concerned.
    others = TopicName.parse("persistent://pulsar/system/t")
    history.when(CreateTopic(others)).then(events=[created(others, incarnation=2)])


def test_a_moving_tenant_is_replicated_until_it_switches() -> None:
    replicated = {phase for phase in FORWARD if target_of(moving(phase).state, "public")}
    assert replicated == {Phase.REPLICATING, Phase.FENCED, Phase.DECIDED}
    fenced = {phase for phase in FORWARD if is_fenced(moving(phase).state, "public")}
    assert fenced == {Phase.FENCED, Phase.DECIDED, Phase.SWITCHED}


def test_a_cluster_is_not_deleted_while_a_tenant_moves_there_and_may_be_afterwards() -> None:
    history = moving(Phase.BEGUN).when(RollBackMigration("public", ""))
    history.when(advance(Phase.ROLLED_BACK)).when(DeleteCluster("there"))
    history.then(events=[ClusterDeleted(name="there")])


def test_migrations_survive_a_checkpoint() -> None:
    machine = CatalogMachine()
    for phase in FORWARD:
        state = moving(phase).state
        assert machine.restore(machine.snapshot(state)) == state


def _unknown_target(state: Catalog) -> None:
    del state.clusters["there"]


def _at_home_too_early(state: Catalog) -> None:
    state.homes["public"] = "there"


def _tenant_gone(state: Catalog) -> None:
    state.namespaces.clear()
    state.policies.clear()
    del state.tenants["public"]


def _leapt(state: Catalog) -> None:
    steps = ((Phase.BEGUN, 1), (Phase.DECIDED, 2))
    state.migrations["public"] = Migration(1, "there", "exact", 1, (), steps)


def _number_again(state: Catalog) -> None:
    state.next_migration = 1


def _shared_number(state: Catalog) -> None:
    state.migrations["pulsar"] = state.migrations["public"]


@pytest.mark.parametrize(
    ("spoil", "invariant"),
    [
        (_unknown_target, "a tenant moves to another cluster, a registered one"),
        (_at_home_too_early, "the home of a moving tenant is this cluster until the switch"),
        (_tenant_gone, "a tenant that moves exists"),
        (_leapt, "a migration goes from phase to phase"),
        (_number_again, "the next migration's number is above all that were used"),
        (_shared_number, "no two migrations share a number"),
    ],
)
def test_each_invariant_catches_its_breach(
    spoil: Callable[[Catalog], None], invariant: str
) -> None:
    history = moving(Phase.FENCED)
    spoil(history.state)
    with pytest.raises(InvariantViolation, match=invariant):
        history.machine.check(history.state)
