"""What a tenant has is made in another cluster: all of it, once, and nothing over what differs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.local_cluster import LocalCluster
from tests.support.neighbours import ask, neighbours
from velaray import MessageId
from velaray.client.admin import Admin, NotFound
from velaray.events.ids import TopicName
from velaray.geo.tenant_migration.tenant_copy import (
    MetadataConflict,
    There,
    admin_of,
    carry_out,
    look_at,
    plan,
)
from velaray.geo.tenant_migration.tenant_metadata import (
    NamespaceMetadata,
    SchemaText,
    TenantMetadata,
    TopicMetadata,
    read_tenant,
)
from velaray.topology.rpc import RemoteError

SPACE, PLAIN, MANY = "acme/orders", "persistent://acme/orders/t t", "persistent://acme/orders/many"
AVRO = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
WIDER = AVRO.replace("}]", '},{"name":"b","type":"int","default":0}]')
Pair = tuple[LocalCluster, LocalCluster]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Clusters a, which has tenant acme, and b, which hasn't."""
    with neighbours(tmp_path) as (a, b):
        admin = Admin(a.admin_url)
        admin.create_tenant("acme", admin_roles=["ops"], allowed_clusters=["a"])
        admin.create_namespace(SPACE)
        admin.create_namespace("acme/empty")
        admin.set_policy_of(SPACE, "messageTTL", 60)
        admin.set_policy_of(SPACE, "replication", ["a"])
        admin.create_topic(PLAIN, properties={"owner": "ana"})
        admin.set_policy_of(PLAIN, "deduplication", False)
        admin.create_topic(MANY, partitions=3, properties={"é": "ü"})
        admin.create_subscription(PLAIN, "s", MessageId.latest, {"k": "v"})
        admin.create_subscription(MANY, "s", MessageId.latest)
        admin.create_subscription(f"{MANY}-partition-1", "alone/1", MessageId.latest)
        admin.upload_schema(MANY, "AVRO", AVRO, {"p": "q"})
        admin.upload_schema(MANY, "AVRO", WIDER)
        yield a, b


def read(cluster: LocalCluster) -> TenantMetadata:
    found: TenantMetadata = cluster.run(read_tenant(cluster.actor_system, "acme"))
    return found


def other(a: LocalCluster) -> Admin:
    """The admin interface of b, as a's actors use it."""
    ask(a, "set_home", tenant="somebody", cluster="b")
    return admin_of(ask(a, "home", tenant="somebody"))


def copy(a: LocalCluster, admin: Admin, **more: Any) -> list[str]:
    """Make in b what a has; what was done."""
    steps = plan(read(a), "a", look_at(admin, "acme"), **more)
    carry_out(steps, admin)
    return [step.text for step in steps]


def test_all_metadata_of_a_tenant_is_read(pair: Pair) -> None:
    a, _ = pair
    found = read(a)
    space = found.namespaces[SPACE]
    assert (found.admin_roles, found.allowed_clusters) == (("ops",), ("a",))
    assert found.namespaces["acme/empty"] == NamespaceMetadata({}, {})
    assert space.policies == {"messageTTL": 60, "replication": ["a"]}
    plain, many = space.topics[PLAIN], space.topics[MANY]
    assert plain == TopicMetadata(
        0, {"owner": "ana"}, {"deduplication": False}, (), {PLAIN: {"s": {"k": "v"}}}
    )
    assert (many.partitions, many.properties, many.policies) == (3, {"é": "ü"}, {})
    assert [list(many.subscriptions[f"{MANY}-partition-{n}"]) for n in range(3)] == [
        ["s"],
        ["alone/1", "s"],
        ["s"],
    ]
    assert [(each.type, each.properties) for each in many.schemas] == [
        ("AVRO", {"p": "q"}),
        ("AVRO", {}),
    ]
    assert TenantMetadata.of_json(Admin(a.admin_url).tenant_metadata("acme")) == found
    with pytest.raises(RemoteError, match="no tenant 'nobody'"):
        a.run(read_tenant(a.actor_system, "nobody"))


def test_a_copy_is_created_once(pair: Pair) -> None:
    a, b = pair
    admin = other(a)
    here, before = read(a), look_at(admin, "acme")
    dry = [step.text for step in plan(here, "a", before)]
    assert before.metadata is None
    assert look_at(admin, "acme").metadata is None  # a plan changes nothing
    assert dry[0] == "create tenant acme"
    assert f"create topic {MANY} with 3 partitions" in dry
    assert f"create subscription alone/1 on {MANY}-partition-1" in dry
    assert f"register schema 1 of topic {MANY} (AVRO)" in dry
    assert copy(a, admin) == dry
    there = read(b)
    space = replace(here.namespaces[SPACE], policies={"messageTTL": 60, "replication": ["b"]})
    assert there == replace(
        here, allowed_clusters=("a", "b"), namespaces={**here.namespaces, SPACE: space}
    )
    assert copy(a, admin) == []


def test_an_interrupted_copy_continues(pair: Pair) -> None:
    a, b = pair
    admin = other(a)
    steps = plan(read(a), "a", look_at(admin, "acme"))
    dry, done = [step.text for step in steps], []
    while steps:
        carry_out(steps[:1], admin)
        done.append(steps[0].text)
        steps = plan(read(a), "a", look_at(admin, "acme"))
    assert done == dry
    assert read(b).namespaces.keys() == read(a).namespaces.keys()


def test_a_tenant_is_copied_even_if_the_target_names_the_source_as_its_home(pair: Pair) -> None:
    a, b = pair
    ask(b, "set_home", tenant="acme", cluster="a")
    copy(a, other(a))
    assert len(read(b).namespaces[SPACE].topics[MANY].schemas) == 2


def test_copied_subscriptions_get_all_later_messages(pair: Pair) -> None:
    a, b = pair
    copy(a, other(a))
    stats = Admin(b.admin_url).stats(PLAIN)
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0
    with pytest.raises(NotFound):
        Admin(b.admin_url).stats(f"{PLAIN}-none")


def test_changes_at_the_source_are_copied_again(pair: Pair) -> None:
    a, b = pair
    admin, here = other(a), Admin(a.admin_url)
    copy(a, admin)
    here.update_tenant("acme", admin_roles=["root"])
    here.set_policy_of(SPACE, "messageTTL", 90)
    here.remove_policy_of(PLAIN, "deduplication")
    here.set_policy_of(MANY, "replication", ["a"])
    here.grow_partitions(MANY, 4)
    here.create_subscription(MANY, "late", MessageId.latest)
    here.delete_subscription(PLAIN, "s")
    with pytest.raises(MetadataConflict) as conflict:
        plan(read(a), "a", look_at(admin, "acme"))
    assert len(conflict.value.problems) == 4
    done = copy(a, admin, owned=lambda name: True)
    assert "update tenant acme" in done
    assert f"give topic {MANY} 4 partitions" in done
    assert f"remove policy deduplication of {PLAIN}" in done
    assert not [text for text in done if text.startswith("delete")]
    there = read(b).namespaces[SPACE]
    assert there.policies["messageTTL"] == 90
    assert (there.topics[PLAIN].policies, there.topics[MANY].policies) == (
        {},
        {"replication": ["b"]},
    )
    assert list(there.topics[MANY].subscriptions[f"{MANY}-partition-3"]) == ["late", "s"]
    assert copy(a, admin, owned=lambda name: True, settled=True) == [
        f"delete subscription s on {PLAIN}"
    ]
    assert copy(a, admin, owned=lambda name: True, settled=True) == []


# -- plans alone -------------------------------------------------------------------

INT, TEXT = (SchemaText(kind, "", {}, kind) for kind in ("INT32", "STRING"))
TOPIC = "persistent://acme/orders/t"


def tenant(
    topic: TopicMetadata | None = None, roles: tuple[str, ...] = (), **policies: Any
) -> TenantMetadata:
    topics = {} if topic is None else {TOPIC: topic}
    space = NamespaceMetadata(policies, topics)
    return TenantMetadata("acme", roles, ("a", "b"), {SPACE: space})


def topic(partitions: int = 0, **more: Any) -> TopicMetadata:
    name = TopicName.parse(TOPIC)
    numbers = range(partitions) if partitions else (-1,)
    given: dict[str, Any] = {"properties": {}, "policies": {}, "schemas": ()} | more
    subscriptions = given.pop("subscriptions", {})
    named = {str(name.of_partition(number)): subscriptions for number in numbers}
    return TopicMetadata(partitions, subscriptions=named, **given)


def planned(here: TenantMetadata, found: TenantMetadata | None, **more: Any) -> list[str]:
    there = There("b", frozenset({"a", "b"}), found)
    return [step.text for step in plan(here, "a", there, **more)]


@pytest.mark.parametrize(
    ("here", "found", "problem"),
    [
        (tenant(roles=("x",)), tenant(), "tenant acme has roles"),
        (tenant(messageTTL=1), tenant(messageTTL=2), f"messageTTL of {SPACE} is 2 there, not 1"),
        (tenant(), tenant(messageTTL=2), f"messageTTL of {SPACE} is 2 there, not None"),
        (tenant(topic()), tenant(topic(policies={"deadLetter": 1})), f"deadLetter of {TOPIC}"),
        (tenant(topic(4)), tenant(topic(3)), f"{TOPIC} has 3 partitions there, not 4"),
        (tenant(topic(3)), tenant(topic(4)), f"{TOPIC} has 4 partitions there, not 3"),
        (tenant(topic(1)), tenant(topic()), f"{TOPIC} has 0 partitions there, not 1"),
        (tenant(topic(properties={"a": "b"})), tenant(topic()), f"{TOPIC} has other properties"),
        (tenant(topic(schemas=(INT,))), tenant(topic(schemas=(TEXT,))), f"{TOPIC} has 1 schemas"),
        (
            tenant(topic(subscriptions={"s": {}})),
            tenant(topic(subscriptions={"s": {"a": "b"}})),
            f"subscription s on {TOPIC} has other properties",
        ),
    ],
)
def test_conflicting_metadata_is_refused_and_named(
    here: TenantMetadata, found: TenantMetadata, problem: str
) -> None:
    with pytest.raises(MetadataConflict) as conflict:
        planned(here, found)
    (told,) = conflict.value.problems
    assert problem in told
    assert str(conflict.value).startswith("cluster b: ")


@pytest.mark.parametrize(
    ("here", "found"),
    [
        (tenant(topic(3)), tenant(topic(4))),
        (tenant(topic(1)), tenant(topic())),
        (tenant(topic(properties={"a": "b"})), tenant(topic())),
        (tenant(topic(schemas=(INT,))), tenant(topic(schemas=(TEXT,)))),
    ],
)
def test_some_conflicts_are_refused_even_for_owned_metadata(
    here: TenantMetadata, found: TenantMetadata
) -> None:
    with pytest.raises(MetadataConflict):
        planned(here, found, owned=lambda name: True)


def test_every_problem_is_named_at_once() -> None:
    here = replace(tenant(topic(4), messageTTL=1), allowed_clusters=("a", "b", "c", "d"))
    with pytest.raises(MetadataConflict) as conflict:
        planned(here, tenant(topic(3)))
    assert len(conflict.value.problems) == 3
    assert "c, d, which isn't registered there" in conflict.value.problems[0]


def test_missing_metadata_is_created() -> None:
    here = tenant(topic(policies={"deadLetter": 1}), messageTTL=1)
    assert planned(here, tenant(topic())) == [
        f"set policy messageTTL of {SPACE}",
        f"set policy deadLetter of {TOPIC}",
    ]


def test_additional_metadata_is_left_unchanged() -> None:
    found = tenant(topic(subscriptions={"s": {}, "more": {}}))
    more = NamespaceMetadata({"messageTTL": 5}, {})
    found = replace(found, namespaces={**found.namespaces, "acme/more": more})
    here = tenant(topic(subscriptions={"s": {}}))
    here = replace(here, allowed_clusters=("b",))
    assert planned(here, found) == []
    assert planned(here, found, owned=lambda name: True) == []
    assert planned(here, found, settled=True) == []  # not this caller's to delete


def test_only_owned_metadata_is_changed() -> None:
    here, found = tenant(topic(4), messageTTL=1), tenant(topic(3), messageTTL=2)
    with pytest.raises(MetadataConflict, match="messageTTL"):
        planned(here, found, owned=lambda name: name == TOPIC)
    steps = planned(here, found, owned=lambda name: name in (TOPIC, SPACE))
    assert steps == [f"set policy messageTTL of {SPACE}", f"give topic {TOPIC} 4 partitions"]


@pytest.mark.parametrize(
    ("here", "there", "same"),
    [
        (["a"], ["b"], True),  # who replicated from a does so from b
        (["a", "c"], ["c", "b"], True),
        (["a", "b"], ["b", "a"], True),
        (["a", "b"], ["b"], False),
    ],
)
def test_replication_policies_are_compared_from_the_targets_view(
    here: list[str], there: list[str], same: bool
) -> None:
    if same:
        assert planned(tenant(replication=here), tenant(replication=there)) == []
    else:
        with pytest.raises(MetadataConflict):
            planned(tenant(replication=here), tenant(replication=there))


def test_schemas_are_registered_in_order_and_replicated_ones_are_kept() -> None:
    here = tenant(topic(schemas=(INT, TEXT)))
    assert planned(here, tenant(topic(schemas=(TEXT,)))) == [
        f"register schema 0 of topic {TOPIC} (INT32)"
    ]
