"""Moves by load: what a host measures, and which topic leaves it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from velaray.events.ids import ActorKey, TopicName
from velaray.topology.load import (
    BUSY_SAMPLES,
    BUSY_SHARE,
    OTHERS_SHARE,
    QUIET_SAMPLES,
    QUIET_SHARE,
    BusyRule,
    Load,
    LoadMeter,
    QuietRule,
)
from velaray.topology.placement import REST_S, PlacementTable, group_of

BUSY = Load({"a": BUSY_SHARE + 0.1, "b": OTHERS_SHARE + 0.1})


def partition(name: str) -> ActorKey:
    return ActorKey.of_partition(TopicName.parse(f"persistent://public/default/{name}"), 1)


class Hosted(dict[ActorKey, int]):
    """Actors that have done so much work."""

    def __iter__(self) -> Any:
        return iter([(key, SimpleNamespace(work=lambda n=n: n)) for key, n in self.items()])


def test_cpu_time_is_attributed_by_the_commands_of_a_group() -> None:
    hosted = Hosted({partition("a"): 100, partition("b"): 50})
    meter: Any = LoadMeter(hosted)  # type: ignore[arg-type]
    meter.sample(10.0, 3.0)
    hosted[partition("a")] += 60
    hosted[ActorKey.of_subscription(partition("a"), "s", 1)] = 15
    hosted[partition("b")] += 25
    load = meter.sample(15.0, 5.0)
    a, b = group_of(partition("a")), group_of(partition("b"))
    assert load.shares == {a: 0.4 * 75 / 100, b: 0.4 * 25 / 100}
    assert load.busiest == a
    hosted[partition("a")] = 3  # it was started again
    assert meter.sample(20.0, 5.5).shares == {a: 0.0, b: 0.0}


def test_a_topic_leaves_after_it_was_busy_for_some_samples() -> None:
    rule = BusyRule()
    assert [rule.chosen(BUSY) for _ in range(BUSY_SAMPLES)] == [""] * (BUSY_SAMPLES - 1) + ["a"]


def test_a_pause_or_another_topic_begins_the_count_anew() -> None:
    for other in (Load({}), Load({"a": 0.1, "b": BUSY_SHARE + 0.2})):
        rule = BusyRule()
        for _ in range(BUSY_SAMPLES - 1):
            assert rule.chosen(BUSY) == ""
        assert rule.chosen(other) == ""
        assert rule.chosen(BUSY) == ""


def test_a_topic_that_slows_nobody_down_stays() -> None:
    rule = BusyRule()
    alone = Load({"a": 0.9, "b": OTHERS_SHARE / 2})
    assert {rule.chosen(alone) for _ in range(3 * BUSY_SAMPLES)} == {""}


def test_a_quiet_topic_returns_and_a_busy_one_or_an_empty_host_does_not() -> None:
    rule, quiet = QuietRule(), Load({"a": QUIET_SHARE / 2})
    assert [rule.chosen(quiet) for _ in range(QUIET_SAMPLES)][-2:] == ["", "a"]
    assert rule.chosen(BUSY) == "" and rule.chosen(quiet) == ""
    assert {QuietRule().chosen(Load({})) for _ in range(2 * QUIET_SAMPLES)} == {""}


def test_each_busy_group_gets_an_empty_host_of_its_own_and_rests_there() -> None:
    table = PlacementTable(1, own=1)
    for name in "abc":
        assert table.place(partition(name)) == "host/0"
    a, b = group_of(partition("a")), group_of(partition("b"))
    assert table.relief(a, 0.0) == "host/own-0"
    table.move(a, "host/own-0")
    table.relieved(a, 0.0)
    assert table.relief(b, 1.0) == ""  # there is no other one
    assert table.relief("elsewhere", 1.0) == ""
    assert table.relief(a, REST_S - 1) == ""
    assert table.relief(a, REST_S) == "host/0"
    assert table.place(partition("d")) == "host/0"  # nothing else goes there


def test_a_drained_own_host_takes_no_group() -> None:
    table = PlacementTable(1, own=2)
    table.place(partition("a"))
    table.drain("host/own-0")
    assert table.relief(group_of(partition("a")), 0.0) == "host/own-1"


def test_an_isolated_topic_gets_a_host_of_its_own_at_once_and_stays() -> None:
    table = PlacementTable(1, own=1)
    table.place(partition("a"))
    a = group_of(partition("a"))
    table.relieved(a, 0.0)  # it has just returned
    assert table.relief(a, 1.0) == ""
    assert table.relief(a, 1.0, isolated=True) == "host/own-0"
    table.move(a, "host/own-0")
    assert table.relief(a, 2 * REST_S, isolated=True) == ""
