"""``velaray top`` and ``velaray topics peek``, and the question before something is destroyed."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.local_cluster import LocalCluster
from velaray.cli import top
from velaray.cli.app import main
from velaray.client.admin import Admin
from velaray.sync.client import Client

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def where(cluster: LocalCluster) -> dict[str, str]:
    return {"VELARAY_ADMIN_URL": cluster.admin_url, "VELARAY_SERVICE_URL": cluster.service_url}


@pytest.fixture
def run(where: dict[str, str]) -> Run:
    def invoke(*arguments: str, code: int = 0) -> Result:
        result = CliRunner(env=where).invoke(main, arguments)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return invoke


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


# -- peek --------------------------------------------------------------------------


def test_peeking_shows_the_newest_messages_and_takes_none(run: Run) -> None:
    run("topics", "create", "seen")
    run("subscriptions", "create", "seen", "s")
    for text in ("a", "b", "c"):
        run("produce", "seen", "-m", text, "--key", "k")
    assert [each["data"] for each in lines(run("topics", "peek", "seen", "-o", "json"))] == ["c"]
    found = lines(run("topics", "peek", "seen", "-n", "9", "-o", "json"))
    assert [each["data"] for each in found] == ["a", "b", "c"]
    assert {each["key"] for each in found} == {"k"}
    table = run("topics", "peek", "seen", "-n", "2").stdout.splitlines()
    assert [line.split("\t")[-1] for line in table] == ["b", "c"]
    taken = lines(run("consume", "seen", "-s", "s", "-n", "3", "-o", "json"))
    assert [each["data"] for each in taken] == ["a", "b", "c"]
    assert [each["id"] for each in taken] == [each["id"] for each in found]


def test_peeking_at_a_subscription_shows_what_it_gets_next(run: Run, cluster: LocalCluster) -> None:
    run("topics", "create", "parts", "--partitions", "2")
    run("subscriptions", "create", "parts", "s")
    with Client(cluster.service_url) as client:
        producer = client.create_producer("parts", batching_enabled=True)
        for number in range(6):
            producer.send_async(b"%d" % number, properties={"n": str(number)})
        producer.flush()
    peek = "topics", "peek", "parts", "--subscription", "s", "-o", "json"
    found = lines(run(*peek, "-n", "9"))
    assert sorted(each["data"] for each in found) == list("012345")
    assert all(each["properties"] == {"n": each["data"]} for each in found)
    assert len(lines(run(*peek, "-n", "4"))) == 4
    run("subscriptions", "skip", "parts", "s", "--all")
    assert run(*peek).stdout == ""


def test_peeking_at_nothing(run: Run) -> None:
    run("topics", "create", "empty")
    assert run("topics", "peek", "empty").stdout == ""
    assert "no topic" in run("topics", "peek", "nowhere", code=1).stderr
    assert "no subscription" in run("topics", "peek", "empty", "-s", "none", code=1).stderr


def test_bytes_are_shown_as_base64(run: Run, cluster: LocalCluster) -> None:
    with Client(cluster.service_url) as client:
        client.create_producer("binary", batching_enabled=False).send(b"\xff")
    assert lines(run("topics", "peek", "binary", "-o", "json"))[0]["dataBase64"] == "/w=="


# -- top ---------------------------------------------------------------------------


def test_top_shows_backlogs_in_entries(run: Run) -> None:
    for name, count in (("deep", 3), ("deeper", 5)):
        run("topics", "create", name)
        run("subscriptions", "create", name, "s")
        for _ in range(count):
            run("produce", name, "-m", "x")
    rows = json.loads(run("top", "--once", "--sort", "backlog", "-o", "json").stdout)
    found = [(row["topic"].rpartition("/")[2], row["backlogEntries"]) for row in rows]
    assert found[:2] == [("deeper", 5), ("deep", 3)]
    assert rows[0]["hostCpuPercent"] is None  # all actors are in this process
    assert not any(row["topic"].startswith("persistent://pulsar/") for row in rows)
    table = run("top", "-n", "1", "--sort", "backlog").stdout.splitlines()
    assert len(table) == 2 and "BACKLOG ENTRIES" in table[0] and "deeper" in table[1]


def test_top_computes_the_cpu_of_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    actors = ["partition/public/default/busy/0/1", "partition/public/default/busy/1/1"]
    used = iter([1.0, 1.5])
    clock = iter([10.0, 12.0])
    monkeypatch.setattr(top, "monotonic", lambda: next(clock))
    admin: Any = SimpleNamespace(hosts=lambda: [{"pid": 7, "cpu_s": next(used), "actors": actors}])
    before, now = top._read_hosts(admin), top._read_hosts(admin)
    assert now.percent_of("persistent://public/default/busy", before) == 25
    assert now.percent_of("persistent://public/default/idle", before) is None


def test_top_updates_a_terminal_until_ctrl_c(where: dict[str, str], run: Run) -> None:
    run("topics", "create", "watched")
    run("subscriptions", "create", "watched", "s")
    code = "from velaray.cli.app import main; main(prog_name='velaray')"
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code, "top", "--interval", "0.2"],
        env={**os.environ, **where, "TERM": "xterm", "COLUMNS": "160"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        shown = b""
        while shown.count(b"BACKLOG ENTRIES") < 2:
            shown += os.read(ours, 65536)
        process.send_signal(2)
        with suppress(OSError):  # the end of a terminal without programs
            while os.read(ours, 65536):
                pass
    assert process.returncode == 1
    os.close(ours)


# -- confirmation ------------------------------------------------------------------


def test_destroying_needs_yes_without_a_terminal(run: Run, cluster: LocalCluster) -> None:
    run("topics", "create", "kept")
    refused = run("topics", "delete", "kept", code=2).stderr
    assert "this would delete the topic kept with its messages and subscriptions" in refused
    assert "give --yes" in refused
    assert any(name.endswith("/kept") for name in Admin(cluster.admin_url).topics("public/default"))
    run("topics", "delete", "kept", "--yes")


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_a_terminal_is_asked(
    where: dict[str, str], run: Run, tmp_path: Path, answer: bytes, code: int
) -> None:
    run("topics", "create", f"asked-{code}")
    program = "from velaray.cli.app import main; main(prog_name='velaray')"
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    done = subprocess.run(
        [sys.executable, "-c", program, "topics", "delete", f"asked-{code}"],
        env={**os.environ, **where},
        stdin=theirs,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    os.close(ours)
    os.close(theirs)
    assert done.returncode == code, done.stderr
    assert f"This will delete the topic asked-{code}" in done.stderr
    names = run("topics", "list").stdout
    assert (f"asked-{code}" in names) == bool(code)


def test_consuming_creates_a_topic_only_on_demand(run: Run) -> None:
    wait = "--timeout", "0.1"
    assert "no topic" in run("consume", "made-here", "-s", "s", *wait, code=1).stderr
    run("consume", "made-here", "-s", "s", "--create", *wait, code=1)
    assert "made-here" in run("topics", "list").stdout
