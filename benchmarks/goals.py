"""The goals of the comparison, and how what was measured relates to them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.contract import ARROW, LISTS, OWN
from benchmarks.model import Result, Verdict
from benchmarks.plan import IN_FLIGHT, RELAXED, SIZES, SUBSCRIPTIONS, VELARAY

Place = tuple[str, str, str, str]
"""Workload, case, subject, measure."""
_100B, _1KIB, _64KIB = SIZES.values()
_MIB = 1 << 20
NOT_MEASURED = "not measured: "


@dataclass(frozen=True, slots=True)
class Goal:
    """The median at ``measured``, over that at ``reference`` if there is one, has a limit."""

    text: str
    measured: Place
    reference: Place | None
    limit: float
    at_least: bool
    factor: float = 1.0


def _at_least(
    text: str, load: str, case: str, measure: str, way: str, limits: dict[str, float]
) -> Iterator[Goal]:
    subject = f"{VELARAY}, {way}" if way else VELARAY
    for peer, limit in limits.items():
        yield Goal(
            f"{text}, {case}, over {peer}",
            (load, case, subject, measure),
            (load, case, peer, measure),
            limit,
            True,
        )


def _throughput() -> Iterator[Goal]:
    publish = {"redis-always": 1.5, "redis-everysec": 1.0, "nats": 4.0, "pulsar": 1.2}
    drain = {"redis-always": 1.3, "redis-everysec": 1.1, "pulsar": 1.0}
    for case in (_100B, _1KIB):
        yield from _at_least("publish, batched", "throughput", case, "publish", "", publish)
    for case in (_100B, _1KIB):
        yield from _at_least("drain", "throughput", case, "drain", "", drain)
    for measure in ("publish", "drain"):
        limits = {"redis-always": 1.5}
        yield from _at_least(f"{measure}, {OWN}", "throughput", _100B, measure, OWN, limits)
    for way in (LISTS, ARROW):
        for case, measure, limit in (
            (_100B, "publish", 8.0),
            (_1KIB, "publish", 4.0),
            (_100B, "drain", 15.0),
            (_1KIB, "drain", 5.0),
        ):
            limits = {"redis-always": limit}
            yield from _at_least(f"{measure}, {way}", "throughput", case, measure, way, limits)


def _latency() -> Iterator[Goal]:
    for subject, measure, peer, limit in (
        (VELARAY, "end to end p50", "redis-always", 1.0),
        (VELARAY, "end to end p99", "redis-always", 1.5),
        (RELAXED, "end to end p50", "redis-everysec", 1.3),
        (RELAXED, "end to end p99", "redis-everysec", 1.3),
    ):
        case = "500 msg/s"
        yield Goal(
            f"latency, {subject}, {measure} at {case}, over {peer}",
            ("latency", case, subject, measure),
            ("latency", case, peer, measure),
            limit,
            False,
        )


def _transactions() -> Iterator[Goal]:
    limits = dict.fromkeys(("kafka", "kafka-flush", "pulsar"), 1.0)
    measure = f"messages, {IN_FLIGHT} in flight"
    text = f"transactions, {LISTS}"
    yield from _at_least(text, "transactions", "100 + 100", measure, LISTS, limits)


def _rest() -> Iterator[Goal]:
    yield Goal(
        "publish 64 KiB, over append and fdatasync per MiB",
        ("throughput", _64KIB, VELARAY, "publish"),
        ("disk", _64KIB, "disk", "append and fdatasync per MiB"),
        0.7,
        True,
        65536 / _MIB,
    )
    many, one = f"1 KiB, {SUBSCRIPTIONS} subscriptions", "1 KiB, 1 subscription"
    rate = "deliveries per server CPU second"
    yield Goal(
        f"fan-out, {rate}, {SUBSCRIPTIONS} subscriptions over one",
        ("fan-out", many, VELARAY, rate),
        ("fan-out", one, VELARAY, rate),
        3.0,
        True,
    )
    read = "read from files per byte published"
    yield Goal(f"fan-out, {read}", ("fan-out", many, VELARAY, read), None, 1.0, False)
    for case, limit in ((_64KIB, 1.1), (_1KIB, 1.3)):
        measure = "publish, disk per byte"
        place = ("throughput", case, VELARAY, measure)
        yield Goal(f"bytes on disk per byte published, {case}", place, None, limit, False)


GOALS = (*_throughput(), *_latency(), *_transactions(), *_rest())


def unmeasured(
    results: Sequence[Result], loads: Collection[str], peers: Collection[str]
) -> list[str]:
    """Goals about these workloads and peers of which a side is missing all the same."""
    known = {verdict.goal for verdict in judge(results)}
    return [
        f"{NOT_MEASURED}{goal.text}"
        for goal in GOALS
        if goal.text not in known and goal.measured[0] in loads and _asked(goal, peers)
    ]


def _asked(goal: Goal, peers: Collection[str]) -> bool:
    return goal.reference is None or goal.reference[2] in (*peers, "disk", VELARAY)


def judge(results: Sequence[Result]) -> list[Verdict]:
    """A verdict for every goal of which both sides were measured."""
    medians = {
        (result.name, row.case, row.subject, row.measure): row.median
        for result in results
        for row in result.rows
    }
    found = []
    for goal in GOALS:
        value = medians.get(goal.measured)
        base = medians.get(goal.reference) if goal.reference else 1.0
        if value is not None and base:
            found.append(Verdict(goal.text, value * goal.factor / base, goal.limit, goal.at_least))
    return found
