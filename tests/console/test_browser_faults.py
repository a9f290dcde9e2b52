"""Actions of the console in Chromium that need a broken store or a second cluster.

They handle deletions of ledgers that were given up, and roll a migration back.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.console.browsing import IN_CHROMIUM
from tests.console.window import Refused, Window
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from tests.topology.deleting import given_up, stored, wait_for
from tests.topology.migrating import Move, migrating, numbers
from tests.topology.test_garbage_collector import refuse
from velaray.broker.garbage_collection import garbage_collector
from velaray.client.admin import Admin
from velaray.geo.tenant_migration.migration_driver import Driver

pytestmark = [pytest.mark.slow, IN_CHROMIUM]

LETTERS = "/console/dead-letters"
ROLL_BACK = "/console/clusters/roll-back"
TOPIC = "persistent://acme/n/t"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """A cluster whose garbage collector gives up sooner."""
    monkeypatch.setattr(garbage_collector, "MAX_TRIES", 2)
    with LocalCluster(tmp_path, deleters=1, deletion_retry_s=0.05) as running:
        yield running


def test_deletions_that_were_given_up_are_retried_and_forgotten(
    browser: Any, cluster: LocalCluster
) -> None:
    admin, window = Admin(cluster.admin_url), Window(browser, cluster.admin_url)
    refusing = refuse(cluster, 1000)
    kept_key, kept = given_up(cluster, "kept")
    gone_key, gone = given_up(cluster, "gone")
    ids = {each["ledgerId"]: each["id"] for each in admin.ledgers.dead()}
    window.open("/")
    window.shows("2 deletions of ledgers were given up")

    def retry(ledger: int) -> None:
        window.open(LETTERS)
        window.press(f"{LETTERS}/retry", f':has([value="{ids[ledger]}"])')
        window.done("1 deletions are retried")

    retry(gone)  # the store still refuses
    wait_for(cluster, dead=3)
    ids = {each["ledgerId"]: each["id"] for each in admin.ledgers.dead()}
    assert set(ids) == {kept, gone}
    refusing.times = 0
    retry(gone)
    wait_until(lambda: gone not in stored(cluster, gone_key))
    assert [each["ledgerId"] for each in admin.ledgers.dead()] == [kept]

    window.open(LETTERS)
    window.follow(f"{LETTERS}/forget?")
    window.shows(f"Forget the deletion {ids[kept]}?")
    window.shows("Its ledger stays stored")
    assert len(admin.ledgers.dead()) == 1  # a question changes nothing
    assert window.serious() == []
    window.press(f"{LETTERS}/forget")
    window.done("1 deletions are forgotten")
    assert admin.ledgers.dead() == []
    assert kept in stored(cluster, kept_key)
    assert window.page.locator(f'form[action="{LETTERS}/retry"]').count() == 0

    window.open(f"{LETTERS}/forget", id=ids[kept])
    with pytest.raises(Refused, match="there is no dead letter"):
        window.press(f"{LETTERS}/forget")
    assert window.asked >= {("POST", f"{LETTERS}/retry"), ("POST", f"{LETTERS}/forget")}
    window.close()
    assert window.faults == []


@pytest.fixture
def move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Move]:
    """A migration that never comes to its end by itself."""

    async def never(driver: Driver) -> bool:
        return False

    monkeypatch.setattr(Driver, "_is_close", never)
    with migrating(tmp_path) as found:
        found.publish(TOPIC, numbers(3))
        found.begin()
        found.reaches("replicating")
        yield found


def test_a_migration_is_rolled_back(browser: Any, move: Move) -> None:
    window = Window(browser, move.a.admin_url)
    window.open("/console/clusters")
    window.shows("acme to b: replicating")
    window.press(ROLL_BACK, tenant="acme", why="the wrong cluster")
    window.shows("Roll the migration of acme back?")
    window.shows("It is in the phase replicating. The roll-back deletes the tenant's copy at b")
    assert move.phase() == "replicating"  # a question changes nothing
    assert window.serious() == []
    window.press(ROLL_BACK)
    window.done("The migration of acme is rolled back")
    move.reaches("rolled back")
    assert not move.message_status(move.b)["tenant"]
    assert move.home(move.a) == "a"
    window.page.wait_for_selector("text=acme to b: rolled back")
    window.shows("the wrong cluster")
    window.open("/console/clusters")
    assert window.page.locator(f'form[action="{ROLL_BACK}"]').count() == 0  # it is over
    assert window.serious() == []
    window.close()
    assert window.faults == []


def test_a_migration_that_is_decided_is_not_rolled_back(
    browser: Any, move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = Window(browser, move.a.admin_url)
    window.open("/console/clusters")
    window.press(ROLL_BACK, tenant="acme")
    monkeypatch.undo()
    move.reaches("done")
    with pytest.raises(Refused, match="has moved to cluster b"):
        window.press(ROLL_BACK)
    assert move.home(move.a) == "b"
    window.close()
    assert window.faults == []
