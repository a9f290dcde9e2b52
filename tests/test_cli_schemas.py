"""``velaray schemas``, as people run it."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from click.testing import CliRunner, Result

from tests.support.local_cluster import LocalCluster
from tests.topology.schema_wire import ONE, THREE, TWO, World
from tests.topology.schema_wire import run as run_world
from velaray.cli.app import main
from velaray.client.admin import Admin
from velaray.schemas import SchemaInfo

Run = Callable[..., Result]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    name = f"persistent://public/default/cli-schemas-{next(_numbers)}"
    Admin(cluster.admin_url).create_topic(name)
    return name


@pytest.fixture
def run(cluster: LocalCluster) -> Run:
    def invoke(*arguments: str, code: int = 0) -> Result:
        where = {
            "VELARAY_ADMIN_URL": cluster.admin_url,
            "VELARAY_SERVICE_URL": cluster.service_url,
        }
        result = CliRunner(env=where).invoke(main, ["schemas", *arguments])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return invoke


@pytest.fixture
def files(tmp_path: Path) -> Callable[[SchemaInfo], str]:
    def write(info: SchemaInfo) -> str:
        path = tmp_path / f"{next(_numbers)}.avsc"
        path.write_bytes(info.data)
        return str(path)

    return write


def shown(result: Result) -> Any:
    return json.loads(result.stdout)


def test_schemas_are_uploaded_listed_shown_and_deleted(run: Run, topic: str, files) -> None:
    assert "version 0 of" in run("upload", topic, files(ONE)).output
    assert shown(run("upload", topic, files(TWO), "-o", "json"))["version"] == 1
    lines = run("list", topic).stdout.splitlines()
    assert [line.split()[-1] for line in lines if re.match(r"\s*\d", line)] == ["live", "live"]
    told = run("get", topic, "0").stdout
    assert told.startswith("version 0, AVRO, of 2")
    assert '"name": "f1"' in told
    assert shown(run("get", topic, "-o", "json"))["version"] == 1
    refused = run("upload", topic, "--type", "STRING", code=1)
    assert "type STRING isn't AVRO" in refused.output
    assert "as version 2" in run("delete", topic, "--yes", "--force").output
    assert run("list", topic).output.count("live") == 0
    listed = run("list", topic, "--deleted").stdout
    assert (listed.count("deleted"), listed.count("deletion")) == (2, 1)
    assert "version 3" in run("upload", topic, "--type", "STRING").output


def test_the_versions_at_a_point_in_time_are_listed(run: Run, topic: str, files) -> None:
    run("upload", topic, files(ONE))
    run("upload", topic, files(TWO))
    for moment, versions in (("1", [0]), ("2", [0, 1]), ("2001-01-01T00:00:00Z", [])):
        found = shown(run("list", topic, "--as-of", moment, "-o", "json"))
        assert [each["version"] for each in found] == versions
    assert "give a time" in run("list", topic, "--as-of", "1:1", code=2).output


def test_two_versions_are_compared(run: Run, topic: str, files) -> None:
    run("upload", topic, files(ONE))
    run("upload", topic, files(TWO))
    run("upload", topic, files(THREE))
    told = run("diff", topic, "0", "1").stdout
    assert '+      "name": "f2"' in told
    assert "each can read the other" in told
    assert "it can't read version 0, at /f2" in run("diff", topic, "0", "2").output
    assert shown(run("diff", topic, "1", "1", "-o", "json")) == {"diff": [], "problems": []}


def test_a_schema_is_checked_without_being_registered(run: Run, topic: str, files) -> None:
    assert "compatible under FULL" in run("check", topic, files(ONE)).output
    run("upload", topic, files(ONE))
    told = run("check", topic, files(THREE), code=1).output
    assert "not compatible under FULL" in told
    assert "can't read version 0, at /f2" in told
    run("check", topic, files(THREE), "--strategy", "FORWARD")
    assert "write name=value" in run("check", topic, "--property", "x", code=2).output
    assert len(shown(run("list", topic, "-o", "json"))) == 1


def test_a_schema_is_tried_on_stored_messages(
    cluster: LocalCluster, run: Run, topic: str, files
) -> None:
    """Also on messages that bear a deleted version, and on those that are broken."""

    def encoded(info: SchemaInfo, **values: int) -> bytes:
        import io

        raw = io.BytesIO()
        fastavro.schemaless_writer(raw, json.loads(info.data), values)
        return raw.getvalue()

    async def publish(world: World) -> None:
        peer = await world.connect()
        await peer.produce(ONE, encoded(ONE, f1=1), encoded(ONE, f1=2))
        await peer.produce(TWO, encoded(TWO, f1=1, f2=2), b"\xff")

    run_world(cluster, topic, publish)
    run("delete", topic, "--yes")
    told = run("check", topic, files(TWO), "--against-history", code=1).output
    assert "read 4 retained messages, 1 can't be decoded" in told
    assert "(version 1): the payload ends too early" in told
    found = shown(run("check", topic, files(THREE), "--against-history", "-o", "json", code=1))
    assert [each["version"] for each in found["problems"]] == [0]
    assert [each["version"] for each in found["unreadable"]] == [0, 0, 1]
    found = shown(
        run("check", topic, files(TWO), "--against-history", "--messages", "3", "-o", "json")
    )
    assert (found["compatibility"], found["messagesRead"]) == (True, 3)
