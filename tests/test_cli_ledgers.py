"""``velaray ledgers`` and the routes behind it: the audit, one ledger, dead letters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from tests.topology.deleting import (
    a_journal,
    a_topic,
    given_up,
    listed,
    make_journal,
    publish,
    stored,
    tell,
    wait_for,
)
from tests.topology.test_garbage_collector import refuse
from velaray.broker.garbage_collection import garbage_collector
from velaray.broker.garbage_collection.collectors import has_work
from velaray.broker.garbage_collection.deletion import enqueue_deletion, purge_journal
from velaray.cli.app import main
from velaray.client.admin import Admin, AdminError, NotFound
from velaray.events.ids import ActorKey
from velaray.journal.files import FileStore

Run = Callable[..., Result]


@pytest.fixture
def cluster(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalCluster]:
    """A cluster whose garbage collectors give up sooner."""
    monkeypatch.setattr(garbage_collector, "MAX_TRIES", 2)
    path = tmp_path_factory.mktemp("cluster")
    with LocalCluster(path, deleters=1, deletion_retry_s=0.05) as running:
        yield running
        assert running.actor_system.failures == []


@pytest.fixture
def admin(cluster: LocalCluster) -> Admin:
    return Admin(cluster.admin_url)


@pytest.fixture
def run(cluster: LocalCluster) -> Run:
    def invoke(*arguments: str, code: int = 0) -> Result:
        where = {"VELARAY_ADMIN_URL": cluster.admin_url}
        result = CliRunner(env=where).invoke(main, ["ledgers", *arguments])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return invoke


def as_json(result: Result) -> Any:
    return json.loads(result.stdout)


def lost(found: dict[str, Any]) -> int:
    return sum(found["totals"][state]["ledgers"] for state in ("orphan", "missing"))


def test_a_cluster_at_rest_has_only_listed_ledgers(cluster: LocalCluster, run: Run) -> None:
    make_journal(cluster, a_topic("orders"), 4)
    found = as_json(run("audit", "--json"))
    totals = {state: each["ledgers"] for state, each in found["totals"].items()}
    assert totals.pop("listed") >= 5 and not any(totals.values())
    assert found["kinds"]["partition"]["listed"]["ledgers"] == 4
    shown = run("audit").output
    assert "orphan" in shown and "missing" in shown and "partition" in shown


def test_orphans_are_found_and_repaired(cluster: LocalCluster, run: Run) -> None:
    key = a_topic("orders")
    journal = make_journal(cluster, key)
    first, second, *rest = listed(journal)
    cluster.run(journal.drop_from_manifest([first, second]))  # nobody was told
    found = as_json(run("audit", "--json", code=3))
    assert [each["ledgerId"] for each in found["ledgers"]["orphan"]] == [first, second]
    assert found["totals"]["orphan"]["bytes"] > 0
    assert f"{first} of {key.text()}" in run("audit", code=3).output
    assert "delete the ledgers that no manifest lists: give --yes" in (
        run("audit", "--repair", code=2).output
    )
    assert "enqueued the deletion of 2 orphans" in run("audit", "--repair", "--yes").output
    wait_until(lambda: stored(cluster, key) == rest)
    assert lost(as_json(run("audit", "--json"))) == 0


def test_a_listed_ledger_without_its_file_is_missing(cluster: LocalCluster, run: Run) -> None:
    key = a_topic("orders")
    first = listed(make_journal(cluster, key))[0]
    cluster.run(cluster.actor_system.store.delete_ledger(key.text(), first))
    found = as_json(run("audit", "--json", code=3))
    assert [each["ledgerId"] for each in found["ledgers"]["missing"]] == [first]
    assert as_json(run("audit", "--repair", "--yes", "--json", code=3))["announced"] == 0
    assert as_json(run("describe", str(first), "-o", "json"))["state"] == "missing"


def test_a_manifest_that_cannot_be_read_is_named_and_the_others_are_counted(
    cluster: LocalCluster, run: Run
) -> None:
    bad, good = a_topic("bad"), a_topic("good")
    first, *_ = listed(make_journal(cluster, bad))
    journal = make_journal(cluster, good)
    orphan, *_ = listed(journal)
    cluster.run(journal.drop_from_manifest([orphan]))
    store = cluster.actor_system.store
    version, data = cluster.run(store.read_manifest(bad.text()))
    assert isinstance(store, FileStore)
    damaged = Path(store.location(bad.text())) / str(version)
    damaged.write_bytes(bytes([data[0] ^ 0xFF]) + data[1:])
    found = as_json(run("audit", "--json", code=3))
    (unread,) = found["unreadable"]
    assert unread["journal"] == bad.text()
    assert "corrupt at byte" in unread["why"] and str(store.root) not in unread["why"]
    assert [each["ledgerId"] for each in found["ledgers"]["orphan"]] == [orphan]
    assert found["totals"]["listed"]["ledgers"] >= 3
    assert f"  {bad.text()}: " in run("audit", code=3).output
    assert as_json(run("describe", str(orphan), "-o", "json"))["state"] == "orphan"
    assert "corrupt" in run("describe", str(first), code=1).output
    assert as_json(run("audit", "--repair", "--yes", "--json", code=3))["announced"] == 1
    damaged.write_bytes(data)
    wait_until(lambda: orphan not in stored(cluster, good))
    assert lost(as_json(run("audit", "--json"))) == 0


def test_a_ledger_that_waits_for_deletion_is_pending(cluster: LocalCluster, run: Run) -> None:
    key = a_topic("orders")
    journal = make_journal(cluster, key)
    first, second, *_ = listed(journal)
    cluster.run(journal.drop_from_manifest([first]))
    tell(cluster, key, [first, second])
    described = as_json(run("describe", str(second), "-o", "json"))
    assert described["state"] == "listed" and described["journal"] == key.text()
    assert described["pending"] or described["deadLetters"]
    wait_for(cluster, deleted=1)
    assert lost(as_json(run("audit", "--json"))) == 0


def test_waiting_ends_when_all_ledgers_are_deleted(cluster: LocalCluster, run: Run) -> None:
    assert as_json(run("wait", "-o", "json")) == {"left": 0, "bytes": 0, "before": 0, "dead": 0}
    key = a_topic("orders")
    journal = make_journal(cluster, key, 6)
    going = listed(journal)[:3]
    cluster.run(journal.drop_from_manifest(going))
    tell(cluster, key, going)
    told = as_json(run("wait", "-o", "json"))
    assert told["left"] == told["dead"] == 0 and told["before"] <= 3
    assert not set(stored(cluster, key)) & set(going)


def test_waiting_reports_the_remaining_ledgers(
    cluster: LocalCluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage_collector, "MAX_TRIES", 10_000)
    refusing = refuse(cluster, 10_000)
    key = a_topic("orders")
    journal = make_journal(cluster, key)
    (first, *_) = listed(journal)
    cluster.run(journal.drop_from_manifest([first]))
    tell(cluster, key, [first])
    told = as_json(run("wait", "--within", "0.2", "-o", "json", code=3))
    assert told["left"] == told["before"] == 1 and told["bytes"] > 0
    refusing.times = 0
    assert "0 ledgers wait" in run("wait").output


def test_drain_does_not_wait_for_dead_letters(cluster: LocalCluster, run: Run) -> None:
    refuse(cluster, 1000)
    given_up(cluster)
    assert "1 couldn't be deleted" in run("wait", code=3).output


def test_a_dead_letter_is_retried_after_the_fault_is_gone(cluster: LocalCluster, run: Run) -> None:
    refusing = refuse(cluster, 1000)
    key, first = given_up(cluster)
    (letter,) = as_json(run("dlq", "list", "-o", "json"))
    assert (letter["ledgerId"], letter["journal"]) == (first, key.text())
    assert letter["tries"] == 3 and letter["component"] == "managed-ledger"
    assert str(first) in run("dlq", "list").output
    found = as_json(run("audit", "--json"))
    assert found["totals"]["dead-letter"]["ledgers"] == 1 and lost(found) == 0
    assert "deletion failed: dead letter" in run("describe", str(first)).output
    refusing.times = 0
    assert run("dlq", "retry", letter["id"]).output == "retrying 1 deletions\n"
    wait_until(lambda: first not in stored(cluster, key))
    assert as_json(run("dlq", "list", "-o", "json")) == []
    assert lost(as_json(run("audit", "--json"))) == 0
    wait_until(lambda: not cluster.run(has_work(cluster.actor_system)))
    assert "neither stored nor in a manifest" in run("describe", str(first), code=1).output


def test_a_failed_retry_is_a_dead_letter_again(cluster: LocalCluster, run: Run) -> None:
    refuse(cluster, 1000)
    key, first = given_up(cluster)
    assert as_json(run("dlq", "retry", "--all", "-o", "json")) == {"retried": 1}
    wait_for(cluster, dead=2)
    (letter,) = as_json(run("dlq", "list", "-o", "json"))
    assert letter["ledgerId"] == first and first in stored(cluster, key)


def test_dropping_a_dead_letter_leaves_an_orphan(cluster: LocalCluster, run: Run) -> None:
    refusing = refuse(cluster, 1000)
    _, first = given_up(cluster)
    _, second = given_up(cluster, "payments")
    letters = as_json(run("dlq", "list", "-o", "json"))
    (kept,) = [each for each in letters if each["ledgerId"] == second]
    (gone,) = [each for each in letters if each["ledgerId"] == first]
    assert as_json(run("dlq", "forget", gone["id"], "--yes", "-o", "json")) == {"forgotten": 1}
    assert as_json(run("dlq", "list", "-o", "json")) == [kept]
    found = as_json(run("audit", "--json", code=3))
    assert [each["ledgerId"] for each in found["ledgers"]["orphan"]] == [first]
    assert [each["ledgerId"] for each in found["ledgers"]["dead-letter"]] == [second]
    refusing.times = 0
    run("audit", "--repair", "--yes")
    wait_for(cluster, deleted=1)
    run("dlq", "forget", gone["id"], "--yes", code=1)


def test_dead_letters_are_selected_by_id_or_all(run: Run, admin: Admin) -> None:
    for command in ("retry", "forget"):
        options = ["--yes"] if command == "forget" else []
        assert "give --all" in run("dlq", command, *options, code=2).output
        assert "give --all" in run("dlq", command, "1:2:3", "--all", *options, code=2).output
        assert "no dead letter '1:2:3'" in run("dlq", command, "1:2:3", *options, code=1).output
    assert admin.retry_dead_ledgers() == admin.forget_dead_ledgers() == 0


def test_an_invalid_event_can_only_be_dropped(cluster: LocalCluster, admin: Admin) -> None:
    refuse(cluster, 1000)
    given_up(cluster)
    (letter,) = admin.dead_ledgers()
    publish(cluster, b"no event", topic=letter["topic"])
    (odd,) = [each for each in admin.dead_ledgers() if each["ledgerId"] is None]
    with pytest.raises(AdminError, match="it can only be forgotten"):
        admin.retry_dead_ledgers([odd["id"]])
    assert admin.forget_dead_ledgers([odd["id"]]) == 1
    assert len(admin.dead_ledgers()) == 1


def test_a_ledger_is_described(cluster: LocalCluster, run: Run, admin: Admin) -> None:
    key = a_topic("orders")
    first, *rest = listed(make_journal(cluster, key))
    found = admin.ledger(first)
    assert found["owned"] and found["sealed"] and found["bytes"] > 0
    assert found["location"].endswith(f"{first}.ledger")
    assert not admin.ledger(rest[-1])["sealed"]
    shown = run("describe", str(first)).output
    assert shown.startswith(f"ledger {first} of {key.text()}: listed\n")
    with pytest.raises(NotFound, match="neither stored nor in a manifest"):
        admin.ledger(first + 1000)
    with pytest.raises(AdminError, match="whole number"):
        admin.request("GET", "ledgers/minus", version=3)


def test_no_ledger_is_reported_lost_while_ledgers_roll_and_are_deleted(
    cluster: LocalCluster, admin: Admin
) -> None:
    """Journals roll, are trimmed and purged during repeated audits."""
    keys = [a_topic(f"busy-{number}") for number in range(4)]
    ended = False

    async def busy(key: ActorKey) -> None:
        journal = await a_journal(cluster.actor_system.store, key, 3)
        for number in range(40):
            await journal.roll({"events": b"%d" % number}, b"digest")
            old = listed(journal)[:-2]
            await enqueue_deletion(cluster.actor_system, key, old)
            await journal.drop_from_manifest(old)
        await purge_journal(cluster.actor_system, key)

    async def all_busy() -> None:
        nonlocal ended
        await asyncio.gather(*map(busy, keys))
        ended = True

    working = asyncio.run_coroutine_threadsafe(all_busy(), cluster.loop)
    taken = 0
    while not ended:
        found = admin.ledger_audit()
        assert lost(found) == 0, found["ledgers"]
        taken += 1
        assert not working.done() or working.exception() is None
    assert taken > 1
    wait_until(lambda: not any(stored(cluster, key) for key in keys), 60.0)
    assert lost(admin.ledger_audit()) == 0
