"""How the demo of migration judges a run: it sees losses and redeliveries."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray import Admin, MessageId

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PATIENCE_S = 60
COUNT = 300


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The demo's script as a module."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import migration_under_fire

    return migration_under_fire


@pytest.fixture
def load(demo: ModuleType) -> ModuleType:
    """Its clients and what they note."""
    import flights_load

    return flights_load


@pytest.fixture
def run(demo: ModuleType, tmp_path: Path) -> Iterator[Any]:
    """A run in one cluster, everything consumed; the migration isn't there."""
    with LocalCluster(tmp_path) as cluster:
        admin = Admin(cluster.admin_url)
        demo.make_tenant(admin, (cluster.config.name,))
        load = demo.Load(cluster.service_url, demo.TOPIC, tmp_path / "log")
        run = demo.Run("exact", load)
        try:
            load.start(list(islice(demo.flights(), COUNT)), 2000.0, 5.5)
            wait_until(lambda: load.published == COUNT, PATIENCE_S)
            assert load.finish_publishing(PATIENCE_S)
            assert not load.is_drained()
            load.release()
            wait_until(load.is_drained, PATIENCE_S)
            run.stored = demo.stored(cluster.service_url)
            run.kills = Counter({"partition": 16})
            run.admin = admin
            yield run
        finally:
            load.close()


def problems(demo: ModuleType, run: Any) -> list[str]:
    run.problems = []
    demo.judge(run, argparse.Namespace(kills=4))
    return run.problems


def test_the_demo_reports_lost_and_redelivered_messages(demo: ModuleType, run: Any) -> None:
    assert problems(demo, run) == []
    assert run.load.counted.confirmations == run.load.ordered.confirmations == COUNT
    assert sum(run.stored.values()) == COUNT

    run.stored[7] += 1
    assert problems(demo, run) == ["messages are stored twice"]
    del run.stored[7]
    assert problems(demo, run) == ["messages aren't stored in the other cluster"]
    run.stored[7] = 1

    run.load.publishers[0].confirmed.add(COUNT)
    assert "3 messages didn't come" in problems(demo, run)
    run.load.publishers[0].confirmed.remove(COUNT)

    run.kills.clear()
    assert problems(demo, run) == ["only 0 were killed"]
    run.kills["partition"] = 16

    run.admin.seek(f"{demo.TOPIC}-partition-0", "counted", MessageId.earliest)
    wait_until(lambda: demo.duplicates(run.load), PATIENCE_S)
    (problem,) = problems(demo, run)
    assert "came again after being confirmed" in problem
    run.progress = "snapshots"
    assert problems(demo, run) == []


def test_a_message_in_flight_is_no_duplicate(load: ModuleType) -> None:
    tally = load.Tally()
    message = load.Published(1, "N1", 0)
    before = time.monotonic()
    tally.delivered(message, before)
    tally.confirmed([1])
    tally.delivered(message, before)
    assert not tally.duplicates
    tally.delivered(message, time.monotonic())
    assert tally.duplicates == Counter([1])
    assert (tally.deliveries, tally.seen) == (3, {1})


def test_order_is_checked_for_first_deliveries_and_delays_where_kept(load: ModuleType) -> None:
    ordered, shared = load.Tally(in_order=True), load.Tally()
    late = int(time.time() * 1000) + 60_000
    for number, key in ((1, "a"), (3, "a"), (2, "b"), (1, "a")):
        ordered.delivered(load.Published(number, key, late), 0.0)
        shared.delivered(load.Published(number, key, late), 0.0)
    assert ordered.out_of_order == []
    ordered.delivered(load.Published(0, "a", 0), 0.0)
    assert ordered.out_of_order == [0]
    assert (ordered.too_early, shared.too_early) == ([], [1, 3, 2, 1])
