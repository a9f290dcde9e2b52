"""How the demo of machines judges a run: it sees losses, redeliveries and broken order."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COUNT = 10


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The demo's script as a module."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import machines_under_fire

    return machines_under_fire


@pytest.fixture
def run(demo: ModuleType) -> Any:
    """A run in which everything came out right."""
    load = object.__new__(demo.Load)
    import flights_load

    load.publishers = [
        SimpleNamespace(confirmed=set(range(at, COUNT, 2)), failures=[], newest_ms={})
        for at in (0, 1)
    ]
    load.takers = []
    load.counted, load.official = flights_load.Tally(), flights_load.Tally()
    load.ordered = flights_load.Tally(in_order=True)
    run = demo.Run(load, stored=Counter(range(COUNT)))
    for tally in load.tallies:
        for number in range(COUNT):
            deliver(demo, tally, number)
        tally.confirmed(list(range(COUNT)))
    demo.judge(run)
    assert run.problems == []
    return run


def deliver(demo: ModuleType, tally: Any, number: int) -> None:
    tally.delivered(demo.Published(number, "N1", 0), time.monotonic())


def test_the_demo_reports_what_is_lost(demo: ModuleType, run: Any) -> None:
    run.load.publishers[0].confirmed.add(COUNT)
    demo.judge(run)
    assert run.problems == ["3 messages didn't come", "messages with a receipt aren't stored"]


def test_the_demo_reports_what_is_stored_twice(demo: ModuleType, run: Any) -> None:
    run.stored[3] += 1
    demo.judge(run)
    assert run.problems == ["messages are stored twice"]


def test_the_demo_reports_what_is_redelivered_after_its_confirmation(
    demo: ModuleType, run: Any
) -> None:
    deliver(demo, run.load.counted, 4)
    demo.judge(run)
    assert run.problems == ["1 messages were redelivered after being confirmed"]


def test_the_demo_reports_broken_order(demo: ModuleType, run: Any) -> None:
    run.load.publishers[0].confirmed |= {COUNT, COUNT + 1}
    run.stored.update((COUNT, COUNT + 1))
    for tally in run.load.tallies:
        for number in (COUNT + 1, COUNT):
            deliver(demo, tally, number)
    demo.judge(run)
    assert run.problems == ["messages of a key came out of order"]


def test_everything_serves_when_each_client_has_news_of_each_partition(run: Any) -> None:
    load = run.load
    own, official = load.publishers
    assert not load.serves("own", 1000, 2)
    own.newest_ms.update({0: 1000, 1: 1000})
    for tally in (load.counted, load.ordered):
        tally.published_at("p0", 1000)
        assert not load.serves("own", 1000, 2)
        tally.published_at("p1", 999)
        assert not load.serves("own", 1000, 2)
        tally.published_at("p1", 1001)
    assert load.serves("own", 1000, 2)
    assert not load.serves("official", 1000, 2)
    load.official.published_at("p0", 1000)
    load.official.published_at("p1", 1000)
    official.newest_ms.update({0: 1000, 1: 999})
    assert not load.serves("official", 1000, 2)
    official.newest_ms[1] = 1000
    assert load.serves("official", 1000, 2)
