"""The catalog's rules, one history each, and random histories of all its commands."""

from dataclasses import replace

import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from velaray.actors.catalog.clusters import (
    DeleteCluster,
    RegisterCluster,
    SetTenantHome,
    UpdateCluster,
)
from velaray.actors.catalog.machine import (
    Bootstrap,
    CatalogMachine,
    CreateNamespace,
    CreateTenant,
    CreateTopic,
    DeleteNamespace,
    DeleteTenant,
    DeleteTopic,
    Done,
    Ensured,
    EnsureTopic,
    GrowPartitions,
    RemovePolicy,
    SetPolicy,
    SetTopicProperties,
    UpdateTenant,
)
from velaray.actors.catalog.migration_state import Phase
from velaray.actors.catalog.migration_target import EndIncomingMigration, ExpectTenant
from velaray.actors.catalog.migrations import AdvanceMigration, BeginMigration, RollBackMigration
from velaray.actors.catalog.policies import POLICIES, InvalidPolicyError, Level
from velaray.actors.catalog.state import (
    CLUSTER,
    Catalog,
    Cluster,
    Scope,
    Tenant,
    Topic,
    effective_policy,
    find_topic,
    namespaces,
    own_policies,
    tenants,
    topic_count,
    topics,
)
from velaray.actors.machine import InvariantViolation, Reason
from velaray.actors.testing import drive, given
from velaray.events.events_pb2 import (
    ClusterRegistered,
    LedgerOpened,
    NamespaceCreated,
    NamespaceDeleted,
    PartitionsAdded,
    PolicyRemoved,
    PolicySet,
    TenantCreated,
    TenantDeleted,
    TenantHomeSet,
    TenantUpdated,
    TopicCreated,
    TopicDeleted,
    TopicPropertiesSet,
    TopicTerminated,
)
from velaray.events.ids import ActorKey, TopicName

FLIGHTS = TopicName.parse("flights")
DEFAULT = Scope("public", "default")
HERE = ClusterRegistered(
    name="here", service_url="pulsar://a:1", admin_url="http://a:2", progress="exact", own=True
)
MOVED = ClusterRegistered(
    name="here", service_url="pulsar://b:1", admin_url="http://b:2", progress="exact", own=True
)
START = (
    HERE,
    TenantCreated(tenant="public", allowed_clusters=["here"]),
    NamespaceCreated(tenant="public", namespace="default"),
    TenantCreated(tenant="pulsar", allowed_clusters=["here"]),
    NamespaceCreated(tenant="pulsar", namespace="system"),
)


def started(*events):
    return given(CatalogMachine(), *START, *events)


def created(topic=FLIGHTS, partitions=0, incarnation=1, **properties):
    return TopicCreated(
        topic=str(topic), partitions=partitions, incarnation=incarnation, properties=properties
    )


def policy_set(scope, name, value):
    return PolicySet(
        tenant=scope.tenant, namespace=scope.namespace, topic=scope.topic, name=name, value=value
    )


def test_bootstrap_creates_the_default_tenants_and_namespaces_once() -> None:
    command = Bootstrap("here", "pulsar://a:1", "http://a:2")
    moved = Bootstrap("here", "pulsar://b:1", "http://b:2")
    (
        given(CatalogMachine(), LedgerOpened(ledger_id=1, epoch=1))
        .when(command)
        .then(events=START, reply=Done(True), effects=[])
        .when(command)
        .then(events=[], reply=Done(False))
        .when(moved)
        .then(events=[MOVED])
        .then_state(lambda s: s.clusters == {"here": Cluster("pulsar://b:1", "http://b:2")})
    )


def test_a_tenant_is_created_updated_and_deleted() -> None:
    (
        started()
        .when(CreateTenant("t", ("root",), ("here",)))
        .then(
            events=[TenantCreated(tenant="t", admin_roles=["root"], allowed_clusters=["here"])],
            reply=Done(True),
        )
        .when(CreateTenant("t", ("root",), ("here",)))
        .then(events=[], reply=Done(False))
        .when(CreateTenant("t", ("other",), ("here",)))
        .then_refused(Reason.ALREADY_EXISTS, "tenant t")
        .when(UpdateTenant("t", ("other",), ("here",)))
        .then(
            events=[TenantUpdated(tenant="t", admin_roles=["other"], allowed_clusters=["here"])],
            reply=Done(True),
        )
        .then_state(lambda s: s.tenants["t"] == Tenant(("other",), ("here",)))
        .when(UpdateTenant("t", ("other",), ("here",)))
        .then(events=[], reply=Done(False))
        .when(DeleteTenant("t"))
        .then(events=[TenantDeleted(tenant="t")], reply=Done(True))
        .when(DeleteTenant("t"))
        .then_refused(Reason.NOT_FOUND, "t")
    )


@pytest.mark.parametrize("make", [CreateTenant, UpdateTenant])
def test_a_tenant_needs_a_valid_name_and_registered_clusters(make) -> None:
    (
        started()
        .when(make("a b", (), ("here",)))
        .then_refused(Reason.INVALID, "a b")
        .when(make("public", (), ()))
        .then_refused(Reason.INVALID, "at least one")
        .when(make("public", (), ("here", "nowhere")))
        .then_refused(Reason.INVALID, "nowhere")
    )


def test_only_an_existing_tenant_can_be_updated() -> None:
    started().when(UpdateTenant("t", (), ("here",))).then_refused(Reason.NOT_FOUND, "t")


def test_tenants_and_namespaces_with_contents_are_not_deleted() -> None:
    (
        started(created())
        .when(DeleteNamespace("public", "default"))
        .then_refused(Reason.NOT_EMPTY, "1 topics")
        .when(DeleteTenant("public"))
        .then_refused(Reason.NOT_EMPTY, "1 namespaces")
        .when(DeleteTopic(FLIGHTS))
        .then(events=[TopicDeleted(topic=str(FLIGHTS))])
        .when(DeleteNamespace("public", "default"))
        .then(events=[NamespaceDeleted(tenant="public", namespace="default")], reply=Done())
        .when(DeleteNamespace("public", "default"))
        .then_refused(Reason.NOT_FOUND, "public/default")
        .when(DeleteTenant("public"))
        .then(events=[TenantDeleted(tenant="public")])
    )


def test_system_tenants_and_namespaces_are_never_deleted() -> None:
    (
        started()
        .when(DeleteNamespace("pulsar", "system"))
        .then_refused(Reason.NOT_ALLOWED)
        .when(DeleteTenant("pulsar"))
        .then_refused(Reason.NOT_ALLOWED)
    )


def test_a_namespace_needs_its_tenant_and_is_created_once() -> None:
    (
        started()
        .when(CreateNamespace("public", "n"))
        .then(events=[NamespaceCreated(tenant="public", namespace="n")], reply=Done(True))
        .when(CreateNamespace("public", "n"))
        .then(events=[], reply=Done(False))
        .when(CreateNamespace("nobody", "n"))
        .then_refused(Reason.NOT_FOUND, "nobody")
        .when(CreateNamespace("public", "n/m"))
        .then_refused(Reason.INVALID, "n/m")
    )


def test_a_topic_is_created_once_with_one_number_of_partitions() -> None:
    made = Topic(FLIGHTS, 4, 1, {"a": "1"})
    (
        started()
        .when(CreateTopic(FLIGHTS, 4, {"a": "1"}))
        .then(events=[created(partitions=4, a="1")], reply=Ensured(made, True))
        .when(CreateTopic(FLIGHTS, 4, {"a": "1"}))
        .then(events=[], reply=Ensured(made, False))
        .when(CreateTopic(FLIGHTS, 4))
        .then_refused(Reason.ALREADY_EXISTS, "4 partitions")
        .when(CreateTopic(FLIGHTS, 0, {"a": "1"}))
        .then_refused(Reason.ALREADY_EXISTS)
        .when(CreateTopic(FLIGHTS, exist_ok=True))
        .then(events=[], reply=Ensured(made, False))
    )


@pytest.mark.parametrize("command", [CreateTopic, EnsureTopic])
def test_a_topic_that_is_not_persistent_is_refused_by_name(command) -> None:
    other = TopicName.parse("non-persistent://public/default/flights")
    started(created()).when(command(other)).then_refused(Reason.NOT_ALLOWED, "non-persistent")


@pytest.mark.parametrize(
    ("command", "reason", "text"),
    [
        (CreateTopic(FLIGHTS.of_partition(0)), Reason.INVALID, "names a partition"),
        (CreateTopic(TopicName("public", "default", "a-partition-1")), Reason.INVALID, "reads as"),
        (CreateTopic(TopicName("public", "default", "")), Reason.INVALID, "topic"),
        (CreateTopic(TopicName("public", "default", "\ud800")), Reason.INVALID, "surrogates"),
        (CreateTopic(FLIGHTS, -1), Reason.INVALID, "partitions"),
        (CreateTopic(FLIGHTS, 10_001), Reason.INVALID, "10000"),
        (CreateTopic(TopicName.parse("public/none/x")), Reason.NOT_FOUND, "public/none"),
        (EnsureTopic(TopicName.parse("public/none/x")), Reason.NOT_FOUND, "public/none"),
        (EnsureTopic(TopicName("public", "default", "a-partition-1")), Reason.INVALID, "reads"),
        (GrowPartitions(FLIGHTS, 2), Reason.NOT_FOUND, "flights"),
        (GrowPartitions(FLIGHTS.of_partition(0), 2), Reason.INVALID, "names a partition"),
        (DeleteTopic(FLIGHTS), Reason.NOT_FOUND, "flights"),
        (DeleteTopic(FLIGHTS, 7), Reason.NOT_FOUND, "flights"),
        (DeleteTopic(FLIGHTS.of_partition(0)), Reason.INVALID, "names a partition"),
    ],
)
def test_invalid_topic_commands_are_refused(command, reason, text) -> None:
    started().when(command).then_refused(reason, text)


def test_a_topic_is_created_by_use_and_kept() -> None:
    plain = Topic(FLIGHTS, 0, 1)
    (
        started()
        .when(EnsureTopic(FLIGHTS))
        .then(events=[created()], reply=Ensured(plain, True))
        .when(EnsureTopic(FLIGHTS))
        .then(events=[], reply=Ensured(plain, False))
        .when(EnsureTopic(FLIGHTS.of_partition(0)))
        .then_refused(Reason.NOT_FOUND, "flights-partition-0")
    )


def test_a_partition_is_found_with_its_topic_but_never_created() -> None:
    (
        started(created(partitions=2))
        .when(EnsureTopic(FLIGHTS.of_partition(1)))
        .then(events=[], reply=Ensured(Topic(FLIGHTS, 2, 1), False))
        .when(EnsureTopic(FLIGHTS.of_partition(2)))
        .then_refused(Reason.NOT_FOUND, "flights-partition-2")
        .when(EnsureTopic(TopicName.parse("other-partition-0")))
        .then_refused(Reason.NOT_FOUND, "other-partition-0")
    )


def test_policy_decides_whether_and_how_topics_are_created_by_use() -> None:
    off = b'{"allowAutoTopicCreation":false}'
    many = b'{"allowAutoTopicCreation":true,"defaultNumPartitions":3,"topicType":"partitioned"}'
    (
        started()
        .when(SetPolicy(CLUSTER, "autoTopicCreation", off))
        .when(EnsureTopic(FLIGHTS))
        .then_refused(Reason.NOT_FOUND, "flights")
        .when(SetPolicy(DEFAULT, "autoTopicCreation", many))
        .when(EnsureTopic(FLIGHTS))
        .then(events=[created(partitions=3)], reply=Ensured(Topic(FLIGHTS, 3, 1), True))
        .when(EnsureTopic(TopicName.parse("pulsar/system/x")))
        .then_refused(Reason.NOT_FOUND)
        .when(CreateTopic(TopicName.parse("pulsar/system/x")))
        .then_state(lambda s: s.next_incarnation == 3)
    )


def test_a_namespaces_limit_counts_partitions() -> None:
    (
        started(policy_set(DEFAULT, "maxTopicsPerNamespace", b"3"), created(partitions=2))
        .when(CreateTopic(TopicName.parse("x"), 2))
        .then_refused(Reason.NOT_ALLOWED, "3 topics")
        .when(GrowPartitions(FLIGHTS, 4))
        .then_refused(Reason.NOT_ALLOWED, "3 topics")
        .when(EnsureTopic(TopicName.parse("x")))
        .then(events=[created(TopicName.parse("x"), incarnation=2)])
        .when(EnsureTopic(TopicName.parse("y")))
        .then_refused(Reason.NOT_ALLOWED, "maxTopicsPerNamespace")
        .then_state(lambda s: topic_count(s, "public", "default") == 3)
        .when(DeleteTopic(FLIGHTS))
        .then_state(lambda s: topic_count(s, "public", "default") == 1)
    )


def test_the_limit_of_a_namespace_has_a_finite_default() -> None:
    limit = POLICIES["maxTopicsPerNamespace"].default
    many = [
        created(TopicName.parse(f"t{number}"), partitions=10_000, incarnation=number + 1)
        for number in range(limit // 10_000)
    ]
    x = TopicName.parse("x")
    (
        started(*many)
        .when(EnsureTopic(x))
        .then_refused(Reason.NOT_ALLOWED, f"{limit} topics")
        .when(SetPolicy(DEFAULT, "maxTopicsPerNamespace", b"0"))
        .when(EnsureTopic(x))
        .then_state(lambda s: topic_count(s, "public", "default") == limit + 1)
    )


def test_properties_of_a_topic_are_added_replaced_and_removed() -> None:
    both = {"a": "2", "b": "3"}
    (
        started(created(a="1"))
        .when(SetTopicProperties(FLIGHTS, both))
        .then(
            events=[TopicPropertiesSet(topic=str(FLIGHTS), properties=both)],
            reply=Ensured(Topic(FLIGHTS, 0, 1, both), False),
        )
        .when(SetTopicProperties(FLIGHTS, {}, ("a", "absent")))
        .then(events=[TopicPropertiesSet(topic=str(FLIGHTS), properties={"b": "3"})])
        .when(SetTopicProperties(FLIGHTS, {"b": "3"}, ("a",)))
        .then(events=[])
        .when(SetTopicProperties(TopicName.parse("absent"), both))
        .then_refused(Reason.NOT_FOUND, "absent")
        .when(SetTopicProperties(FLIGHTS.of_partition(0), both))
        .then_refused(Reason.INVALID, "names a partition")
    )


def test_partitions_only_grow() -> None:
    grown = Topic(FLIGHTS, 5, 1, {"a": "1"})
    (
        started(created(partitions=2, a="1"))
        .when(GrowPartitions(FLIGHTS, 5))
        .then(
            events=[PartitionsAdded(topic=str(FLIGHTS), partitions=5)], reply=Ensured(grown, True)
        )
        .when(GrowPartitions(FLIGHTS, 5))
        .then(events=[], reply=Ensured(grown, False))
        .when(GrowPartitions(FLIGHTS, 4))
        .then_refused(Reason.INVALID, "only grow")
        .when(GrowPartitions(FLIGHTS, 10_001))
        .then_refused(Reason.INVALID, "10000")
        .then_state(lambda s: find_topic(s, FLIGHTS) == grown)
    )
    started(created()).when(GrowPartitions(FLIGHTS, 2)).then_refused(Reason.CONFLICT)


def test_an_incarnation_is_never_used_again() -> None:
    (
        started(created())
        .when(DeleteTopic(FLIGHTS))
        .when(CreateTopic(FLIGHTS))
        .then(events=[created(incarnation=2)])
    )


def test_a_late_deletion_spares_the_successor() -> None:
    (
        started(created(), TopicDeleted(topic=str(FLIGHTS)), created(incarnation=2))
        .when(DeleteTopic(FLIGHTS, incarnation=1))
        .then(events=[], reply=Done(False))
        .when(DeleteTopic(FLIGHTS, incarnation=9))
        .then_refused(Reason.NOT_FOUND)
        .when(DeleteTopic(FLIGHTS, incarnation=2))
        .then(events=[TopicDeleted(topic=str(FLIGHTS))], reply=Done(True))
        .when(DeleteTopic(FLIGHTS, incarnation=2))
        .then(events=[], reply=Done(False))
    )


def test_the_narrower_policy_wins() -> None:
    topic = Scope.of_topic(FLIGHTS.of_partition(1))

    def ttl(expected):
        return lambda state: effective_policy(state, topic, "messageTTL") == expected

    (
        started(created(partitions=2))
        .then_state(ttl(0))
        .when(SetPolicy(CLUSTER, "messageTTL", b" 60 "))
        .then(events=[policy_set(CLUSTER, "messageTTL", b"60")], reply=Done(True))
        .then_state(ttl(60))
        .when(SetPolicy(topic, "messageTTL", b"10"))
        .then_state(ttl(10))
        .when(SetPolicy(DEFAULT, "messageTTL", b"30"))
        .then_state(ttl(10))
        .when(RemovePolicy(topic, "messageTTL"))
        .then(
            events=[
                PolicyRemoved(
                    tenant="public", namespace="default", topic=str(FLIGHTS), name="messageTTL"
                )
            ],
            reply=Done(True),
        )
        .then_state(ttl(30))
        .when(RemovePolicy(topic, "messageTTL"))
        .then(events=[], reply=Done(False))
        .then_state(lambda s: dict(own_policies(s, DEFAULT)) == {"messageTTL": 30})
    )


def test_a_policy_set_again_changes_nothing() -> None:
    (
        started()
        .when(SetPolicy(DEFAULT, "delayedDelivery", b'{"active":true,"tickTime":7}'))
        .when(SetPolicy(DEFAULT, "delayedDelivery", b'{"tickTime": 7, "active": true}'))
        .then(events=[], reply=Done(False))
    )


def test_policies_are_deleted_with_their_owner() -> None:
    (
        started(
            created(),
            policy_set(Scope.of_topic(FLIGHTS), "messageTTL", b"1"),
            policy_set(DEFAULT, "messageTTL", b"2"),
        )
        .when(DeleteTopic(FLIGHTS))
        .then_state(lambda s: s.policies == {DEFAULT: {"messageTTL": b"2"}})
        .when(DeleteNamespace("public", "default"))
        .then_state(lambda s: s.policies == {})
    )


@pytest.mark.parametrize(
    ("scope", "name", "value", "text"),
    [
        (DEFAULT, "messageTtl", b"1", "unknown policy 'messageTtl'"),
        (DEFAULT, "maxMessageSize", b"1", "only on topic"),
        (Scope.of_topic(FLIGHTS), "subscriptionExpirationTime", b"1", "cluster and namespace"),
        (DEFAULT, "messageTTL", b"", "not JSON"),
        (DEFAULT, "messageTTL", b"\xff", "not JSON"),
        (DEFAULT, "messageTTL", b"[" * 100_000, "not JSON"),
        (DEFAULT, "messageTTL", b"NaN", "not JSON"),
        (DEFAULT, "messageTTL", b"-1", ">= 0"),
        (DEFAULT, "messageTTL", b"1.5", "whole number"),
        (DEFAULT, "messageTTL", b"true", "whole number"),
        (DEFAULT, "messageTTL", b"9223372036854775808", "whole number"),
        (DEFAULT, "messageTTL", b"null", "whole number"),
        (DEFAULT, "deduplication", b"1", "true or false"),
        (DEFAULT, "schemaCompatibilityStrategy", b'"SOME"', "ALWAYS_COMPATIBLE"),
        (DEFAULT, "retention", b"{}", "lacks retentionTimeInMinutes"),
        (DEFAULT, "retention", b"5", "object"),
        (DEFAULT, "backlogQuota", b'{"size":1}', "no field size"),
        (DEFAULT, "backlogQuota", b'{"message_age":{"policy":"x"}}', "producer_request_hold"),
        (
            DEFAULT,
            "autoTopicCreation",
            b'{"allowAutoTopicCreation":true,"topicType":"partitioned"}',
            "defaultNumPartitions",
        ),
        (DEFAULT, "autoTopicCreation", b'{"allowAutoTopicCreation":1}', "true or false"),
        (DEFAULT, "replication", b"[]", "not empty"),
        (DEFAULT, "replication", b"[1]", "[0] must be a text"),
    ],
)
def test_a_policy_that_would_not_work_is_refused(scope, name, value, text) -> None:
    started(created()).when(SetPolicy(scope, name, value)).then_refused(Reason.INVALID, text)


def test_policies_need_a_known_name_to_be_removed_or_asked_for() -> None:
    history = started().when(RemovePolicy(DEFAULT, "ttl")).then_refused(Reason.INVALID, "ttl")
    with pytest.raises(InvalidPolicyError, match="ttl"):
        effective_policy(history.state, DEFAULT, "ttl")


@pytest.mark.parametrize(
    "scope", [Scope("public", "none"), Scope.of_topic(FLIGHTS), Scope("public"), Scope("", "x")]
)
def test_a_policy_needs_an_existing_owner(scope) -> None:
    (
        started()
        .when(SetPolicy(scope, "messageTTL", b"1"))
        .then_refused(Reason.NOT_FOUND)
        .when(RemovePolicy(scope, "messageTTL"))
        .then_refused(Reason.NOT_FOUND)
    )


def test_lists_are_sorted_and_a_topic_knows_its_actors() -> None:
    state = started(
        NamespaceCreated(tenant="public", namespace="a"),
        created(TopicName.parse("z")),
        created(TopicName.parse("b"), partitions=2, incarnation=2),
        created(TopicName.parse("m"), incarnation=3),
    ).state
    assert tenants(state) == ("public", "pulsar")
    assert namespaces(state, "public") == ("a", "default")
    assert namespaces(state, "nobody") == ()
    two, middle, plain = topics(state, "public", "default")
    assert (two.name.local, middle.name.local, plain.name.local) == ("b", "m", "z")
    assert two.actors() == (
        ActorKey.of_partition(TopicName.parse("b-partition-0"), 2),
        ActorKey.of_partition(TopicName.parse("b-partition-1"), 2),
    )
    assert plain.actors() == (ActorKey.of_partition(TopicName.parse("z"), 1),)
    assert find_topic(state, TopicName.parse("z-partition-0")) is None


def test_equal_catalogs_have_equal_snapshots_in_any_order_of_commands() -> None:
    def turned(value):
        if isinstance(value, Topic):
            return replace(value, properties=turned(value.properties))
        if isinstance(value, dict):
            return {key: turned(value[key]) for key in reversed(value)}
        return value

    machine = CatalogMachine()
    state = started(
        ClusterRegistered(name="there", token="k"),
        ClusterRegistered(name="yonder", token="k"),
        TenantHomeSet(tenant="a", cluster="yonder"),
        TenantHomeSet(tenant="b", cluster="there"),
        created(FLIGHTS, a="1", b="2"),
        created(TopicName.parse("a"), incarnation=2),
        *(
            policy_set(scope, name, b"1")
            for scope in (CLUSTER, DEFAULT, Scope.of_topic(FLIGHTS), Scope("pulsar", "system"))
            for name in ("messageTTL", "maxTopicsPerNamespace")
            if scope.level is not Level.TOPIC or name == "messageTTL"
        ),
    ).state
    other = Catalog(
        turned(state.clusters),
        turned(state.tenants),
        turned(state.namespaces),
        turned(state.policies),
        next_incarnation=state.next_incarnation,
        own=state.own,
        homes=turned(state.homes),
    )
    assert list(other.tenants) != list(state.tenants)
    assert machine.snapshot(other) == machine.snapshot(state)


def test_unknown_commands_and_events_are_errors() -> None:
    with pytest.raises(TypeError, match="not a catalog's command"):
        started().when("hello")
    with pytest.raises(TypeError, match="not a catalog's event"):
        started(TopicTerminated())


def _tenant_without_cluster(state: Catalog) -> None:
    state.tenants["t"] = Tenant((), ("nowhere",))


def _namespace_without_tenant(state: Catalog) -> None:
    del state.tenants["public"]


def _topic_elsewhere(state: Catalog) -> None:
    state.namespaces["pulsar", "system"] = state.namespaces["public", "default"]


def _negative_partitions(state: Catalog) -> None:
    state.namespaces["public", "default"][str(FLIGHTS)] = Topic(FLIGHTS, -1, 1)


def _shared_incarnation(state: Catalog) -> None:
    other = TopicName.parse("other")
    state.namespaces["public", "default"][str(other)] = Topic(other, 0, 1)


def _counter_set_back(state: Catalog) -> None:
    state.next_incarnation = 1


def _orphaned_policy(state: Catalog) -> None:
    state.policies[Scope("public", "gone")] = {"messageTTL": b"1"}


def _empty_policies(state: Catalog) -> None:
    state.policies[DEFAULT] = {}


def _untidy_policy(state: Catalog) -> None:
    state.policies[DEFAULT] = {"messageTTL": b" 1"}


@pytest.mark.parametrize(
    ("spoil", "invariant"),
    [
        (_tenant_without_cluster, "a tenant's clusters are registered"),
        (_namespace_without_tenant, "a namespace has its tenant"),
        (_topic_elsewhere, "a topic lies under its own name"),
        (_negative_partitions, "a topic's partitions are in range"),
        (_shared_incarnation, "no two topics share an incarnation"),
        (_counter_set_back, "the next incarnation is above all that were used"),
        (_orphaned_policy, "a policy belongs to an existing scope"),
        (_empty_policies, "no scope is kept without a policy"),
        (_untidy_policy, "a policy is valid and canonical"),
    ],
)
def test_each_invariant_catches_its_breach(spoil, invariant) -> None:
    history = started(created())
    spoil(history.state)
    with pytest.raises(InvariantViolation, match=invariant):
        history.machine.check(history.state)


NAMES = st.sampled_from(["public", "a", "b", "pulsar", "bad/name"])
SPACES = st.sampled_from(["default", "n", "system", ""])
TOPICS = st.builds(
    TopicName, NAMES, SPACES, st.sampled_from(["t", "u", "t-partition-1"]), st.integers(-1, 2)
)
CLUSTERS = st.sampled_from(["here", "there", "yonder"])
URLS = st.sampled_from(["pulsar://x", "pulsar://y:1,z:2", "y"])
SHARES = st.sampled_from([(), ("here",), ("there", "here")])
SCOPES = st.one_of(
    st.just(CLUSTER), st.builds(Scope, NAMES, SPACES), st.builds(Scope.of_topic, TOPICS)
)
POLICY = st.sampled_from(
    [
        ("messageTTL", b"5"),
        ("messageTTL", b"-5"),
        ("maxTopicsPerNamespace", b"2"),
        ("deduplication", b"true"),
        ("replication", b'["here","there"]'),
        ("autoTopicCreation", b'{"allowAutoTopicCreation":false}'),
        (
            "autoTopicCreation",
            b'{"allowAutoTopicCreation":true,"topicType":"partitioned","defaultNumPartitions":2}',
        ),
        ("nonsense", b"1"),
    ]
)
COMMANDS = st.one_of(
    st.builds(Bootstrap, st.just("here"), st.sampled_from("xy"), st.just("a")),
    st.builds(RegisterCluster, CLUSTERS, URLS, st.just("http://a"), st.sampled_from(["", "k"])),
    st.builds(UpdateCluster, CLUSTERS, st.none() | URLS, st.none(), st.sampled_from([None, "k"])),
    st.builds(DeleteCluster, CLUSTERS),
    st.builds(SetTenantHome, NAMES, CLUSTERS | st.just("")),
    st.builds(BeginMigration, NAMES, CLUSTERS),
    st.builds(AdvanceMigration, NAMES, st.integers(1, 2), st.sampled_from(Phase)),
    st.builds(RollBackMigration, NAMES, st.just("")),
    st.builds(ExpectTenant, NAMES, CLUSTERS, st.integers(1, 3)),
    st.builds(EndIncomingMigration, NAMES, CLUSTERS, st.integers(1, 3), st.booleans()),
    st.builds(CreateTenant, NAMES, st.just(("root",)), SHARES),
    st.builds(UpdateTenant, NAMES, st.just(()), SHARES),
    st.builds(DeleteTenant, NAMES),
    st.builds(CreateNamespace, NAMES, SPACES),
    st.builds(DeleteNamespace, NAMES, SPACES),
    st.builds(CreateTopic, TOPICS, st.integers(-1, 3), st.just({}), st.booleans()),
    st.builds(EnsureTopic, TOPICS, st.booleans()),
    st.builds(GrowPartitions, TOPICS, st.integers(0, 4)),
    st.builds(SetTopicProperties, TOPICS, st.just({"k": "v"}), st.sampled_from([(), ("k",)])),
    st.builds(DeleteTopic, TOPICS, st.integers(0, 3)),
    st.builds(lambda scope, item: SetPolicy(scope, *item), SCOPES, POLICY),
    st.builds(lambda scope, item: RemovePolicy(scope, item[0]), SCOPES, POLICY),
)


@settings(max_examples=200, deadline=None)
@examples(st.lists(COMMANDS, max_size=25))
def test_random_histories_keep_every_invariant(commands) -> None:
    drive(CatalogMachine(), [Bootstrap("here", "x", "a"), *commands])


@settings(max_examples=200, deadline=None)
@examples(st.lists(COMMANDS, max_size=15))
def test_a_command_that_arrives_twice_in_a_row_changes_nothing_more(commands) -> None:
    history = drive(CatalogMachine(), [Bootstrap("here", "x", "a")])
    for command in commands:
        history.when(command)
        history.when(command).then(events=[])
