"""Other clusters in the catalog: the tenants that may use them, and the tenants' homes."""

from __future__ import annotations

import pytest

from tests.actors.test_catalog import DEFAULT, FLIGHTS, MOVED, created, policy_set, started
from velaray.actors.catalog.clusters import (
    DeleteCluster,
    MeetCluster,
    RegisterCluster,
    SetTenantHome,
    UpdateCluster,
    home_of,
    remotes_of,
)
from velaray.actors.catalog.deleted_topics import UndeleteTopic
from velaray.actors.catalog.machine import (
    Bootstrap,
    CatalogMachine,
    CreateTenant,
    Done,
    EnsureTopic,
    RemovePolicy,
    SetPolicy,
    UpdateTenant,
)
from velaray.actors.catalog.state import Catalog, Cluster, Progress, Scope
from velaray.actors.machine import InvariantViolation, Reason
from velaray.actors.testing import drive, given
from velaray.events.events_pb2 import (
    ClusterDeleted,
    ClusterRegistered,
    PolicyRemoved,
    TenantHomeSet,
    TenantUpdated,
    TopicDeleted,
)

SERVICE, ADMIN = "pulsar://b:1", "http://b:2"
THERE = ClusterRegistered(
    name="there", service_url=SERVICE, admin_url=ADMIN, token="secret", progress="exact"
)
SHARED = TenantUpdated(tenant="public", allowed_clusters=["here", "there"])
TOPIC = Scope.of_topic(FLIGHTS)
BOTH = b'["here","there"]'
REGISTER = RegisterCluster("there", SERVICE, ADMIN, "secret")


def with_there(*events):
    return started(THERE, SHARED, *events)


def test_a_cluster_is_registered_once() -> None:
    (
        started()
        .when(REGISTER)
        .then(events=[THERE], reply=Done(True))
        .when(REGISTER)
        .then(events=[], reply=Done(False))
        .when(RegisterCluster("there", SERVICE, ADMIN, "other"))
        .then_refused(Reason.ALREADY_EXISTS, "cluster there")
        .when(RegisterCluster("here", SERVICE, ADMIN))
        .then_refused(Reason.ALREADY_EXISTS, "cluster here")
        .when(RegisterCluster("not/a/name", SERVICE, ADMIN))
        .then_refused(Reason.INVALID, "not/a/name")
    )


@pytest.mark.parametrize(
    ("service", "admin", "named"),
    [
        ("b:1", ADMIN, "service URL"),
        ("pulsar+ssl://b:1", ADMIN, "service URL"),
        ("pulsar://b:1/topic", ADMIN, "service URL"),
        ("pulsar://b:x", ADMIN, "service URL"),
        ("pulsar://b:1,", ADMIN, "service URL"),
        ("pulsar://", ADMIN, "service URL"),
        ("pulsar://me@b", ADMIN, "service URL"),
        (SERVICE, "b:2", "admin URL"),
        (SERVICE, "ftp://b", "admin URL"),
        (SERVICE, "http://b:2,c:2", "admin URL"),
        (SERVICE, "", "admin URL"),
    ],
)
def test_invalid_addresses_are_refused(service: str, admin: str, named: str) -> None:
    command = RegisterCluster("there", service, admin)
    started().when(command).then_refused(Reason.INVALID, named)


def test_invalid_tokens_and_progress_are_refused_and_tokens_never_quoted() -> None:
    history = started().when(RegisterCluster("there", SERVICE, ADMIN, "se cret"))
    history.then_refused(Reason.INVALID, "token")
    assert "cret" not in history._decision().reply.message
    history.when(RegisterCluster("there", SERVICE, ADMIN, progress="guessed"))
    history.then_refused(Reason.INVALID, "guessed")
    assert "secret" not in repr([REGISTER, UpdateCluster("there", token="secret")])
    assert "secret" not in repr(Cluster(SERVICE, ADMIN, "secret"))


def test_an_update_of_a_cluster_changes_only_the_given_fields() -> None:
    moved = ClusterRegistered(
        name="there", service_url="pulsar://c", admin_url=ADMIN, token="secret", progress="exact"
    )
    bare = ClusterRegistered(
        name="there", service_url="pulsar://c", admin_url=ADMIN, progress="snapshots"
    )
    (
        with_there()
        .when(UpdateCluster("there", service_url="pulsar://c"))
        .then(events=[moved], reply=Done(True))
        .when(UpdateCluster("there", service_url="pulsar://c", token="secret"))
        .then(events=[], reply=Done(False))
        .when(UpdateCluster("there", token="", progress="snapshots"))
        .then(events=[bare])
        .then_state(lambda s: s.clusters["there"].progress is Progress.SNAPSHOTS)
        .when(UpdateCluster("there", admin_url="nowhere"))
        .then_refused(Reason.INVALID, "nowhere")
        .when(UpdateCluster("yonder", token=""))
        .then_refused(Reason.NOT_FOUND, "yonder")
        .when(UpdateCluster("here", service_url=SERVICE))
        .then_refused(Reason.NOT_ALLOWED, "here is this one")
    )


def test_a_cluster_that_returns_with_other_data_is_refused() -> None:
    met = ClusterRegistered()
    met.CopyFrom(THERE)
    met.data_id = "one"
    (
        with_there()
        .when(MeetCluster("there", "one"))
        .then(events=[met], reply=Done(True))
        .when(MeetCluster("there", "one"))
        .then(events=[], reply=Done(False))
        .when(MeetCluster("there", "other"))
        .then_refused(Reason.CONFLICT, "cluster there has other data")
        .when(REGISTER)
        .then(events=[], reply=Done(False))
        .when(UpdateCluster("there", token="other"))
        .then_state(lambda s: s.clusters["there"].data_id == "one")
        .when(MeetCluster("yonder", "one"))
        .then(events=[], reply=Done(False))
    )


def test_a_cluster_is_deleted_when_nothing_names_it() -> None:
    back = TenantUpdated(tenant="public", allowed_clusters=["here"])
    elsewhere = TenantHomeSet(tenant="public", cluster="there")
    replicated = policy_set(TOPIC, "replication", BOTH)
    removed = PolicyRemoved(
        tenant=TOPIC.tenant, namespace=TOPIC.namespace, topic=TOPIC.topic, name="replication"
    )
    delete, deleted = DeleteCluster("there"), ClusterDeleted(name="there")
    with_there().when(delete).then_refused(Reason.NOT_ALLOWED, "tenant public may use it")
    started(THERE, elsewhere).when(delete).then_refused(
        Reason.NOT_ALLOWED, "the home of tenant public"
    )
    # Such a policy may be older than the rule that its clusters be the tenant's.
    history = started(THERE, created(), replicated)
    history.when(delete).then_refused(Reason.NOT_ALLOWED, f"replication of {FLIGHTS}")
    history = started(THERE, created(), replicated, removed).when(delete)
    history.then(events=[deleted], reply=Done(True))
    history.when(delete).then_refused(Reason.NOT_FOUND, "there")
    with_there(back).when(delete).then(events=[deleted])
    started().when(DeleteCluster("here")).then_refused(Reason.NOT_ALLOWED, "here is this one")


def test_data_cannot_be_started_under_another_cluster_name() -> None:
    history = started().when(Bootstrap("other", "pulsar://a:1", "http://a:2"))
    history.then_refused(Reason.CONFLICT, "start it under that name")
    # Before clusters knew their own names, nothing said which one was meant.
    old = ClusterRegistered(name="here", service_url="pulsar://b:1", admin_url="http://b:2")
    known = given(CatalogMachine(), old)
    known.when(Bootstrap("here", "pulsar://b:1", "http://b:2"))
    known.then_state(lambda s: s.own == "here" and s.clusters.keys() == {"here"})
    assert MOVED in known._decision().events


@pytest.mark.parametrize("scope", [DEFAULT, TOPIC])
def test_replication_names_this_cluster_and_those_that_the_tenant_may_use(scope: Scope) -> None:
    def setting(value: bytes) -> SetPolicy:
        return SetPolicy(scope, "replication", value)

    (
        with_there(created())
        .when(setting(b'["here","yonder"]'))
        .then_refused(Reason.NOT_ALLOWED, "no such cluster: yonder")
        .when(setting(b'["there"]'))
        .then_refused(Reason.NOT_ALLOWED, "must name this cluster as well, here")
        .when(setting(BOTH))
        .then(events=[policy_set(scope, "replication", BOTH)])
        .then_state(lambda s: remotes_of(s, TOPIC) == {"there": Cluster(SERVICE, ADMIN, "secret")})
        .when(RemovePolicy(scope, "replication"))
        .then_state(lambda s: remotes_of(s, TOPIC) == {})
    )
    started(THERE, created()).when(setting(BOTH)).then_refused(
        Reason.NOT_ALLOWED, "tenant public may not use there"
    )


def test_replication_of_a_topic_overrides_that_of_its_namespace() -> None:
    alone = policy_set(TOPIC, "replication", b'["here"]')
    history = with_there(created(), policy_set(DEFAULT, "replication", BOTH), alone)
    assert remotes_of(history.state, TOPIC) == {}
    assert list(remotes_of(history.state, DEFAULT)) == ["there"]


def test_a_tenant_keeps_the_clusters_that_it_replicates_to() -> None:
    history = with_there(created(), policy_set(TOPIC, "replication", BOTH))
    history.when(UpdateTenant("public", ("root",), ("here",)))
    history.then_refused(Reason.CONFLICT, f"{FLIGHTS} names cluster there")
    history.when(UpdateTenant("public", ("root",), ("here", "there")))
    history.then(reply=Done(True))


def test_a_topic_is_not_undeleted_if_it_would_replicate_to_a_forbidden_cluster() -> None:
    history = with_there(
        created(),
        policy_set(TOPIC, "replication", BOTH),
        TopicDeleted(topic=str(FLIGHTS), restorable_until_ms=100),
        TenantUpdated(tenant="public", allowed_clusters=["here"]),
    )
    history.when(UndeleteTopic(FLIGHTS)).then_refused(Reason.NOT_ALLOWED, "may not use there")


def test_a_tenant_has_one_home_cluster() -> None:
    there = TenantHomeSet(tenant="acme", cluster="there")
    (
        started(THERE)
        .then_state(lambda s: home_of(s, "acme") is None)
        .when(SetTenantHome("acme", "there"))  # it needn't exist: this proxy redirects the lookup
        .then(events=[there], reply=Done(True))
        .then_state(lambda s: home_of(s, "acme") == "there" and home_of(s, "public") is None)
        .when(SetTenantHome("acme", "there"))
        .then(events=[], reply=Done(False))
        .when(SetTenantHome("acme", "here"))
        .then(events=[TenantHomeSet(tenant="acme")], reply=Done(True))
        .when(SetTenantHome("acme", ""))
        .then(events=[], reply=Done(False))
        .when(SetTenantHome("acme", "yonder"))
        .then_refused(Reason.NOT_FOUND, "yonder")
        .when(SetTenantHome("bad/name", "there"))
        .then_refused(Reason.INVALID, "bad/name")
        .when(SetTenantHome("pulsar", "there"))
        .then_refused(Reason.NOT_ALLOWED, "belongs to the system")
    )


def test_clients_find_no_topics_of_a_tenant_with_another_home() -> None:
    history = with_there(TenantHomeSet(tenant="public", cluster="there"))
    history.when(EnsureTopic(FLIGHTS, at_home=True))
    history.then_refused(Reason.ELSEWHERE, "home of tenant public is cluster there")
    history.when(EnsureTopic(FLIGHTS)).then(events=[created()])  # a replicator does
    history.when(EnsureTopic(FLIGHTS, at_home=True)).then_refused(Reason.ELSEWHERE)
    history.when(SetTenantHome("public", "here"))
    history.when(EnsureTopic(FLIGHTS, at_home=True)).then(events=[])


def _home_of_nobodys(state: Catalog) -> None:
    state.homes["acme"] = "nowhere"


def _home_here(state: Catalog) -> None:
    state.homes["acme"] = "here"


def _own_unknown(state: Catalog) -> None:
    state.own = "nowhere"


@pytest.mark.parametrize(
    ("spoil", "invariant"),
    [
        (_home_of_nobodys, "a home is another cluster, a registered one"),
        (_home_here, "a home is another cluster, a registered one"),
        (_own_unknown, "this cluster is registered"),
    ],
)
def test_each_invariant_catches_its_breach(spoil, invariant: str) -> None:
    history = started()
    spoil(history.state)
    with pytest.raises(InvariantViolation, match=invariant):
        history.machine.check(history.state)


def test_registered_clusters_survive_a_checkpoint() -> None:
    machine = CatalogMachine()
    commands = [Bootstrap("here", SERVICE, ADMIN), REGISTER, SetTenantHome("acme", "there")]
    more = [MeetCluster("there", "one"), CreateTenant("acme", (), ("there",))]
    state = drive(machine, [*commands, *more]).state
    assert machine.restore(machine.snapshot(state)) == state


def test_urls_of_tls_are_registered_and_survive_a_checkpoint() -> None:
    machine, by_tls = CatalogMachine(), ("pulsar+ssl://b:3", "https://b:4")
    own = Bootstrap("here", SERVICE, ADMIN, "pulsar+ssl://a:3", "https://a:4")
    secure = RegisterCluster("there", "", "", "", Progress.EXACT, *by_tls)
    state = drive(machine, [own, secure]).state
    assert state.clusters["there"].reached_at == by_tls
    assert state.clusters["here"].service_url_tls == "pulsar+ssl://a:3"
    assert machine.restore(machine.snapshot(state)) == state
    plain = UpdateCluster("there", SERVICE, ADMIN, service_url_tls="", admin_url_tls="")
    assert drive(machine, [own, secure, plain]).state.clusters["there"].reached_at == (
        SERVICE,
        ADMIN,
    )


def test_a_checkpoint_without_other_clusters_has_the_old_form() -> None:
    machine = CatalogMachine()
    old = ClusterRegistered(name="here", service_url=SERVICE, admin_url=ADMIN)
    state = given(machine, old).state
    assert list(machine.snapshot(state)) == ["catalog"]
