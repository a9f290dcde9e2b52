"""The admin interface for schemas: Pulsar's routes and codes, and the past."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tests.support.local_cluster import LocalCluster
from tests.topology.schema_wire import ONE, THREE, TWO, World
from tests.topology.schema_wire import run as run_world
from tests.topology.test_admin_api import V2, Http, Reply
from velaray.events.ids import ActorKind
from velaray.schemas import SchemaInfo, SchemaType
from velaray.schemas.info import key_value, split_key_value
from velaray.schemas.json_form import data_text, info_from_text

_numbers = itertools.count(1)
TEXT = SchemaInfo(SchemaType.STRING)


def body(info: SchemaInfo) -> dict[str, Any]:
    return {
        "type": str(info.type),
        "schema": data_text(info),
        "properties": dict(info.properties),
    }


class Schemas:
    """The routes of one topic."""

    def __init__(self, cluster: LocalCluster, local: str, *, create: bool = True) -> None:
        self.local = local
        self.http = Http(cluster.admin_url)
        if create:
            self.http("PUT", f"{V2}/persistent/public/default/{local}")

    def __call__(self, method: str, path: str, info: SchemaInfo | None = None) -> Reply:
        sent = None if info is None else body(info)
        return self.http(method, f"{V2}/schemas/public/default/{self.local}/{path}", sent)

    def upload(self, info: SchemaInfo) -> int:
        reply = self("POST", "schema", info)
        assert reply.status == 200, reply
        return int(reply.body["version"]["version"])

    def versions(self, query: str = "") -> list[int]:
        reply = self("GET", f"schemas{query}")
        assert reply.status == 200, reply
        return [each["version"] for each in reply.body["getSchemaResponses"]]


@pytest.fixture
def schemas(cluster: LocalCluster) -> Schemas:
    return Schemas(cluster, f"admin-schemas-{next(_numbers)}")


def test_a_schema_is_uploaded_and_read_again(schemas: Schemas) -> None:
    assert schemas("GET", "schema").status == 404
    assert schemas.versions() == []
    assert schemas.upload(ONE) == 0
    assert schemas.upload(TWO) == 1
    assert schemas.upload(ONE) == 0
    latest = schemas("GET", "schema").body
    assert (latest["version"], latest["type"], latest["deleted"]) == (1, "AVRO", False)
    assert json.loads(latest["data"]) == json.loads(TWO.data)
    assert latest["predecessor"] == 0
    assert schemas("GET", "schema/0").body["data"] == ONE.data.decode()
    assert schemas.versions() == [0, 1]
    index = schemas("GET", "metadata").body
    assert [each["version"] for each in index["index"]] == [0, 1]
    assert index["info"] == index["index"][-1]
    assert len(index["info"]["hash"]) == 64


def test_refusals_have_pulsars_codes(cluster: LocalCluster, schemas: Schemas) -> None:
    schemas.upload(ONE)
    refused = schemas("POST", "schema", THREE)
    assert refused.status == 409
    assert "can't read version 0, at /f2" in refused.body["reason"]
    broken = SchemaInfo(SchemaType.AVRO, "x", b"{")
    for path in ("schema", "compatibility", "version"):
        assert schemas("POST", path, broken).status == 422
    path = f"{V2}/schemas/public/default/{schemas.local}"
    assert schemas.http("POST", f"{path}/schema", {"type": "TREE"}).status == 422
    assert schemas.http("POST", f"{path}/schema", {"type": "AVRO", "schema": {}}).status == 400
    assert schemas("GET", "schema/1").status == 404
    assert schemas("GET", "schema/x").status == 400
    assert schemas("POST", "version", TWO).status == 404
    assert schemas("POST", "version", ONE).body == {"version": 0}
    assert schemas("POST", "compatibility?strategy=SOME", ONE).status == 422
    gone = schemas.http("GET", f"{V2}/schemas/public/default/no-such-topic/schema")
    assert gone.status == 404


def test_requests_about_schemas_start_no_registry(cluster: LocalCluster, schemas: Schemas) -> None:
    for path in ("schema", "schema/0", "metadata"):
        assert schemas("GET", path).status == 404
    assert schemas("POST", "version", ONE).status == 404
    assert schemas("POST", "compatibility", ONE).body["compatibility"]
    assert schemas("DELETE", "schema").status == 404
    running = cluster.keys(ActorKind.SCHEMA_REGISTRY)
    assert schemas.local not in {key.topic for key in running}


def test_a_deletion_hides_earlier_versions_and_numbers_continue(schemas: Schemas) -> None:
    schemas.upload(ONE)
    schemas.upload(TWO)
    assert schemas("DELETE", "schema").body == {"version": 2}
    assert schemas("GET", "schema").status == 404
    assert schemas("DELETE", "schema").status == 404
    assert schemas("GET", "schema/0").status == 200  # messages may bear its number
    assert schemas("GET", "schema/2").status == 404  # the deletion is no schema
    assert schemas.versions() == []
    assert schemas.upload(THREE) == 3
    assert schemas("DELETE", "schema?force=true").body == {"version": 4}
    assert schemas.upload(THREE) == 5
    found = schemas("GET", "schemas?deleted=true").body["getSchemaResponses"]
    assert [each["deleted"] for each in found] == [False, False, True, False, True, False]
    assert [each["type"] for each in found][2:4] == ["NONE", "AVRO"]


def test_an_upload_creates_the_topic_unless_topics_arent_created_by_use(
    cluster: LocalCluster,
) -> None:
    early = Schemas(cluster, f"before-its-topic-{next(_numbers)}", create=False)
    path = f"{V2}/persistent/public/default/{early.local}/stats"
    assert early("POST", "schema", SchemaInfo(SchemaType.AVRO, "s", b"{")).status == 422
    assert early.http("GET", path).status == 404
    assert early.upload(ONE) == 0
    assert early.http("GET", path).status == 200
    assert early.versions() == [0]
    early.http("PUT", f"{V2}/namespaces/public/closed")
    rule = {"allowAutoTopicCreation": False}
    assert early.http("POST", f"{V2}/namespaces/public/closed/autoTopicCreation", rule).status < 300
    refused = early.http("POST", f"{V2}/schemas/public/closed/t/schema", body(ONE))
    assert (refused.status, "no topic" in refused.body["reason"]) == (404, True)


def test_an_unset_strategy_of_a_namespace_is_undefined(schemas: Schemas) -> None:
    path = f"{V2}/namespaces/public/strategies/schemaCompatibilityStrategy"
    schemas.http("PUT", f"{V2}/namespaces/public/strategies")
    assert schemas.http("GET", path).body == "UNDEFINED"
    assert schemas.http("GET", f"{path}?applied=true").body == "FULL"
    assert schemas.http("PUT", path, "FORWARD").status == 204
    assert schemas.http("GET", path).body == "FORWARD"


def test_an_upload_is_accepted_where_producers_may_not_register(
    cluster: LocalCluster, schemas: Schemas
) -> None:
    path = f"{V2}/persistent/public/default/{schemas.local}"
    assert schemas.http("POST", f"{path}/isAllowAutoUpdateSchema", False).status == 204
    assert schemas.upload(ONE) == 0
    assert schemas("POST", "schema", THREE).status == 409

    async def scenario(world: World) -> None:
        peer = await world.connect()
        assert await peer.produce(ONE) == 0

    run_world(cluster, schemas.local, scenario)


def test_a_schema_is_tried_without_being_registered(schemas: Schemas) -> None:
    schemas.upload(ONE)
    schemas.upload(TWO)
    found = schemas("POST", "compatibility", THREE).body
    assert (found["compatibility"], found["schemaCompatibilityStrategy"]) == (True, "FULL")
    found = schemas("POST", "compatibility?strategy=BACKWARD_TRANSITIVE", THREE).body
    (problem,) = found["problems"]
    assert (problem["version"], problem["reads"], problem["path"]) == (0, True, "/f2")
    schemas("DELETE", "schema")
    assert schemas("POST", "compatibility", TEXT).body["compatibility"]
    found = schemas("POST", "compatibility?all=true", THREE).body
    assert [each["version"] for each in found["problems"]] == [0]
    assert schemas.versions("?deleted=true") == [0, 1, 2]


def test_the_versions_at_a_point_in_time_are_listed(schemas: Schemas) -> None:
    schemas.upload(ONE)
    schemas.upload(TWO)
    schemas("DELETE", "schema")
    schemas.upload(TEXT)
    times = [
        each["timestamp"]
        for each in schemas("GET", "schemas?deleted=true").body["getSchemaResponses"]
    ]
    assert [schemas.versions(f"?sequence={number}") for number in range(5)] == [
        *([], [0], [0, 1], [], [3])
    ]
    assert schemas.versions(f"?asOf={times[-1]}") == [3]
    assert schemas("GET", "schemas?sequence=1000").status == 404
    assert schemas("GET", "schemas?asOf=x").status == 400
    assert schemas("GET", "schemas?asOf=1&sequence=1").status == 400
    assert schemas.versions("?asOf=1") == []  # before there was anything
    assert schemas("GET", "schema?asOf=1").status == 404
    assert schemas("GET", "schema?sequence=2").body["version"] == 1


def test_key_and_value_are_written_as_objects(schemas: Schemas) -> None:
    both = key_value(TEXT, ONE)
    assert schemas.upload(both) == 0
    found = schemas("GET", "schema").body
    assert json.loads(found["data"]) == {"key": "", "value": json.loads(ONE.data)}
    again = info_from_text(found["type"], found["data"], found["properties"])
    assert split_key_value(again)[0].type is SchemaType.STRING
    assert schemas("POST", "version", again).body == {"version": 0}


def test_an_undefined_strategy_falls_back_to_the_wider_level(schemas: Schemas) -> None:
    path = f"{V2}/persistent/public/default/{schemas.local}/schemaCompatibilityStrategy"
    assert schemas.http("PUT", path, "FORWARD").status == 204
    assert schemas("POST", "compatibility", ONE).body["schemaCompatibilityStrategy"] == "FORWARD"
    assert schemas.http("PUT", path, "UNDEFINED").status == 204
    assert schemas("POST", "compatibility", ONE).body["schemaCompatibilityStrategy"] == "FULL"


def test_past_versions_are_read_without_a_running_registry(
    cluster: LocalCluster, schemas: Schemas
) -> None:
    schemas.upload(ONE)
    (key,) = [
        each for each in cluster.keys(ActorKind.SCHEMA_REGISTRY) if each.topic == schemas.local
    ]
    cluster.kill(key)
    assert schemas.versions("?sequence=1") == [0]
    assert key not in cluster.actor_system.actors
    assert schemas.versions() == [0]
