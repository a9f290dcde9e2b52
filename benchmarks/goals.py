"""The goals of the comparison, and how what was measured relates to them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.contract import ARROW, LISTS, OWN, UNBATCHED
from benchmarks.model import Interval, Result, Row, Verdict
from benchmarks.plan import IN_FLIGHT, MANY_TOPICS, RATES, RELAXED, SIZES, SUBSCRIPTIONS, VELARAY

Place = tuple[str, str, str, str]
"""Workload, case, subject, measure."""
_100B, _1KIB, _64KIB = SIZES.values()
_MIB = 1 << 20
NOT_MEASURED = "not measured: "
FEWEST_ROUNDS = 3
"""With fewer, an interval spans orders of magnitude and says nothing."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit for the value at ``measured``, divided by that at ``reference`` if there is one."""

    text: str
    measured: Place
    reference: Place | None
    limit: float
    at_least: bool
    factor: float = 1.0


def _over(
    text: str, load: str, case: str, ways: tuple[str, str], measure: str, limits: dict[str, float]
) -> Iterator[Goal]:
    """At least so many times what each peer does; ``ways`` are velaray's and the peer's."""
    mine, other = ways
    for peer, limit in limits.items():
        yield Goal(
            f"{text}, {case}, over {peer}",
            (load, case, _subject(VELARAY, mine), measure),
            (load, case, _subject(peer, other), measure),
            limit,
            True,
        )


def _subject(peer: str, way: str) -> str:
    return f"{peer}, {way}" if way else peer


def _throughput() -> Iterator[Goal]:
    load = "throughput"
    for case in (_100B, _1KIB):
        for measure in ("publish", "drain"):
            for way, words in (("", "batched"), (UNBATCHED, UNBATCHED)):
                text = f"{measure}, official client, {words}"
                yield from _over(text, load, case, (way, way), measure, {"pulsar": 1.3})
            for way, limit in ((OWN, 1.5), (LISTS, 4.0), (ARROW, 4.0)):
                text = f"{measure}, {way}"
                yield from _over(text, load, case, (way, ""), measure, {"kafka": limit})
    for measure, limit in (("publish", 4.0), ("drain", 1.5)):
        place = (load, _100B, _subject(VELARAY, UNBATCHED), f"{measure}, server CPU")
        text = f"{measure}, {UNBATCHED}, {_100B}, server CPU in s/M"
        yield Goal(text, place, None, limit, False)


def _latency() -> Iterator[Goal]:
    for case in RATES.values():
        for subject, peer in (
            (VELARAY, "redis-always"),
            (VELARAY, "kafka-flush"),
            (RELAXED, "kafka"),
        ):
            for measure in ("end to end p50", "end to end p99"):
                yield Goal(
                    f"latency, {subject}, {measure} at {case}, over {peer}",
                    ("latency", case, subject, measure),
                    ("latency", case, peer, measure),
                    1.0,
                    False,
                )


def _transactions() -> Iterator[Goal]:
    limits = dict.fromkeys(("kafka", "kafka-flush", "pulsar"), 1.5)
    for case in ("1 + 1", "100 + 100"):
        for way in ("", LISTS):
            for how, measure in (
                (f"{IN_FLIGHT} in flight", f"transactions, {IN_FLIGHT} in flight"),
                ("one at a time", "transactions, one at a time"),
            ):
                text = f"transactions, {way}, {how}" if way else f"transactions, {how}"
                yield from _over(text, "transactions", case, (way, ""), measure, limits)


def _rest() -> Iterator[Goal]:
    yield Goal(
        "publish 64 KiB, over append and fdatasync per MiB",
        ("throughput", _64KIB, VELARAY, "publish"),
        ("disk", _64KIB, "disk", "append and fdatasync per MiB"),
        0.8,
        True,
        65536 / _MIB,
    )
    many = f"1 KiB, {SUBSCRIPTIONS} subscriptions"
    rate = "deliveries per server CPU second"
    limits = {"pulsar": 1.0, "kafka": 1.0}
    yield from _over(f"fan-out, {rate}", "fan-out", many, ("", ""), rate, limits)
    read = "read from files per byte published"
    yield Goal(f"fan-out, {read}", ("fan-out", many, VELARAY, read), None, 1.0, False)
    for count in MANY_TOPICS:
        case = f"100 B, {count} topics"
        yield from _over("publish", "topics", case, ("", ""), "publish", {"pulsar": 1.5})
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
    if goal.reference is None:
        return True
    peer, _, _ = goal.reference[2].partition(",")  # without the way
    return peer in (*peers, "disk", VELARAY)


def judge(results: Sequence[Result]) -> list[Verdict]:
    """A verdict for every goal of which both sides were measured.

    A ratio is the geometric mean of the rounds' ratios. Where a side lacks rounds, it is the ratio
    of the medians, without an interval.
    """
    rows = {
        (result.name, row.case, row.subject, row.measure): row
        for result in results
        for row in result.rows
    }
    found = []
    for goal in GOALS:
        row = rows.get(goal.measured)
        base = rows.get(goal.reference) if goal.reference else None
        if row is not None and (base is not None or goal.reference is None):
            verdict = _judged(goal, row, base)
            if verdict is not None:
                found.append(verdict)
    return found


def _judged(goal: Goal, row: Row, base: Row | None) -> Verdict | None:
    """None if there is nothing to divide by."""
    others = base.values if base is not None else (1.0,) * len(row.values)
    if len(others) == len(row.values) > 1 and min(*row.values, *others) > 0:
        pairs = zip(row.values, others, strict=True)
        ratio = Interval.of([goal.factor * value / other for value, other in pairs])
        if len(others) < FEWEST_ROUNDS:
            return Verdict(goal.text, ratio.mean, goal.limit, goal.at_least)
        return Verdict(goal.text, ratio.mean, goal.limit, goal.at_least, ratio.low, ratio.high)
    median = base.median if base is not None else 1.0
    if not median:
        return None
    return Verdict(goal.text, goal.factor * row.median / median, goal.limit, goal.at_least)
