"""The log lines of a cluster's processes: form, level, and the facts that they carry."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import velaray
from tests.support.local_cluster import LocalCluster
from velaray.broker.client_listener import ClientListener
from velaray.broker.partition.partition_actor import PartitionActor
from velaray.events.ids import ActorKey, ActorKind
from velaray.topology.logs import (
    LogFormat,
    LogLevel,
    configure_logs,
    facts_of,
    log_end,
    recent_lines,
    with_facts,
)

logger = logging.getLogger("velaray")


Configure = Callable[..., Callable[[], None]]


@pytest.fixture
def configure() -> Iterator[Configure]:
    """`configure_logs`, whose effect ends with the test."""
    with ExitStack() as undo:

        def configured(*args: Any, **process: str) -> Callable[[], None]:
            restore = configure_logs(*args, **process)
            undo.callback(restore)
            return restore

        yield configured


def lines(capsys: pytest.CaptureFixture[str], *events: str) -> list[dict[str, Any]]:
    """The lines about these events; clients of other tests may still write some."""
    found = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    return [line for line in found if line["event"] in events]


def test_a_json_line_has_all_facts_and_the_traceback(
    configure: Configure, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(LogFormat.JSON, LogLevel.INFO, process="host/0")
    facts: dict[str, Any] = facts_of(ActorKey.parse("partition/a/b/c/-1/1"))
    with with_facts(facts):
        facts["epoch"] = 3
        logger.info("ledger %d\nends", 7)
        try:
            raise OSError("gone")
        except OSError:
            logger.exception("odd", extra={"actor": "another"})
    assert [line for line in recent_lines() if '"event": "odd"' in line][-1].endswith("}")
    first, second = lines(capsys, "ledger 7\nends", "odd")
    assert first.pop("timestamp").endswith("Z")
    assert first == {
        "event": "ledger 7\nends",
        "level": "info",
        "process": "host/0",
        "actor": "partition/a/b/c/-1/1",
        "topic": "persistent://a/b/c",
        "epoch": 3,
    }
    assert second["actor"] == "another"
    assert "OSError: gone" in second["exception"]


def test_the_end_of_an_actor_is_a_line_of_its_topic(
    configure: Configure, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(LogFormat.JSON, LogLevel.INFO, process="host/0")
    log_end(ActorKey.parse("partition/a/b/c/-1/1"), OSError("gone"))
    (line,) = lines(capsys, "partition/a/b/c/-1/1 stops: OSError: gone")
    assert line["actor"] == "partition/a/b/c/-1/1"
    assert line["topic"] == "persistent://a/b/c"


def test_a_line_for_people_has_the_facts_at_its_end(
    configure: Configure, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(LogFormat.CONSOLE, LogLevel.WARNING, process="host/0")
    with with_facts({"actor": "catalog"}):
        logger.info("not shown")
        logger.warning("the disk is full")
    text = capsys.readouterr().err
    assert "not shown" not in text
    assert " [warning] the disk is full actor=catalog process=host/0\n" in text


def test_libraries_write_from_warnings_on_and_the_result_restores(
    configure: Configure, capsys: pytest.CaptureFixture[str]
) -> None:
    former = logger.level
    configure(LogFormat.CONSOLE, LogLevel.ERROR)()
    assert logger.level == former
    configure(LogFormat.JSON, LogLevel.DEBUG)
    logging.getLogger("asyncio").info("not shown")
    logging.getLogger("asyncio").warning("slow")
    logger.debug("shown")
    assert [
        (each["level"], each["event"]) for each in lines(capsys, "not shown", "slow", "shown")
    ] == [
        ("warning", "slow"),
        ("debug", "shown"),
    ]


def test_tasks_carry_the_facts_of_their_actor_and_of_their_connection(
    tmp_path: Path, configure: Configure, capsys: pytest.CaptureFixture[str]
) -> None:
    async def tell(event: str) -> None:
        logger.warning(event)

    async def work(system: Any) -> None:
        (actor,) = (each for each in system.actors.values() if isinstance(each, PartitionActor))
        assert actor.key.kind is ActorKind.PARTITION
        (session,) = actor.host.part(ClientListener).sessions
        await asyncio.wait([actor.spawn(tell("of the actor")), session.spawn(tell("of a client"))])

    with (
        LocalCluster(tmp_path) as cluster,
        velaray.Client(cluster.service_url) as client,
    ):
        producer = client.create_producer("t")
        producer.send(b"1")
        configure(LogFormat.JSON, LogLevel.INFO)
        asyncio.run_coroutine_threadsafe(work(cluster.actor_system), cluster.loop).result(30)
        found = {each["event"]: each for each in lines(capsys, "of the actor", "of a client")}
    actor = found["of the actor"]
    assert actor["topic"] == "persistent://public/default/t"
    assert actor["actor"].startswith("partition/public/default/t/")
    assert actor["epoch"] >= 1
    client_line = found["of a client"]
    assert client_line["connection"].startswith("127.0.0.1:")
    assert "actor" not in client_line
