"""The measurements of the comparison with other systems: workloads, sizes, subjects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.contract import (
    ARROW,
    BEHIND,
    LISTS,
    MANY,
    ONE_ELSEWHERE,
    OWN,
    UNBATCHED,
)

SIZES = {100: "100 B", 1024: "1 KiB", 65536: "64 KiB"}
RATES = {500: "500 msg/s", 5_000: "5000 msg/s"}
MANY_TOPICS = (16, 100)
SUBSCRIPTIONS = 5
VELARAY = "velaray"
RELAXED = "velaray-relaxed"
"""Measured where its goal is: latency."""
REDIS = "redis-always"
TRANSACTIONAL = (VELARAY, "kafka", "kafka-flush", "pulsar")
IN_FLIGHT = 8
"""Transactions at a time, in every system."""
WITHIN_S = 100.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload of one subject: what is run in which peer's process."""

    load: str
    case: str
    peer: str
    way: str
    arguments: dict[str, Any] = field(hash=False)

    @property
    def subject(self) -> str:
        """The name in tables: the peer, and the way if it isn't the usual one."""
        return f"{self.peer}, {self.way}" if self.way else self.peer

    def arguments_on(self, topic: str) -> dict[str, Any]:
        """The arguments with the topic, if the workload doesn't name its topics itself."""
        return self.arguments if self.load == "topics" else {"topic": topic, **self.arguments}


def _throughput(peers: Sequence[str], seconds: float) -> Iterator[list[Cell]]:
    for size, case in SIZES.items():
        small = size < max(SIZES)
        ways = [(peer, "") for peer in peers if small or peer not in ("ray-queue", "nats-sync")]
        if VELARAY in peers:
            ways += [(VELARAY, LISTS)]
            ways += [(VELARAY, way) for way in (UNBATCHED, OWN, ARROW) if small]
        if "pulsar" in peers and small:
            ways += [("pulsar", UNBATCHED)]
        arguments = {"size": size, "seconds": seconds}
        yield [Cell("throughput", case, peer, way, arguments) for peer, way in sorted(ways)]


def _latency(peers: Sequence[str], seconds: float) -> Iterator[list[Cell]]:
    for rate, times in ((500, 3), (5_000, 2)):
        arguments = {"size": 100, "seconds": times * seconds, "rate": rate}
        # ray.util.queue saturates at the lower rate already.
        able = [peer for peer in peers if peer != "ray-queue" or rate == 500]
        yield [Cell("latency", RATES[rate], peer, "", arguments) for peer in able]


def _fan_out(peers: Sequence[str], seconds: float) -> Iterator[list[Cell]]:
    able = [peer for peer in peers if peer != "ray-queue"]
    for count in (1, SUBSCRIPTIONS):
        arguments = {"size": 1024, "seconds": seconds, "subscriptions": count}
        case = f"1 KiB, {count} subscription{'s' if count > 1 else ''}"
        chosen = able if count > 1 else [peer for peer in able if peer == VELARAY]
        yield [Cell("fan-out", case, peer, "", arguments) for peer in chosen]


def _topics(peers: Sequence[str], seconds: float) -> Iterator[list[Cell]]:
    able = [peer for peer in peers if peer != "ray-queue"]
    for count in MANY_TOPICS:
        arguments = {"size": 100, "seconds": seconds, "topics": count}
        yield [Cell("topics", f"100 B, {count} topics", peer, "", arguments) for peer in able]


def _transactions(peers: Sequence[str], seconds: float) -> Iterator[list[Cell]]:
    for each, most in ((1, 20_000), (100, 200_000)):
        arguments = {"each": each, "at_once": IN_FLIGHT, "seconds": seconds}
        arguments["most"] = max(1000, int(most * seconds))
        ways = [(peer, "") for peer in peers if peer in TRANSACTIONAL]
        if VELARAY in peers:
            ways += [(VELARAY, LISTS)]
        yield [Cell("transactions", f"{each} + {each}", *way, arguments) for way in sorted(ways)]


def _open_transactions(peers: Sequence[str], seconds: float) -> Iterator[list[Cell]]:
    for held in ("", ONE_ELSEWHERE, MANY, BEHIND):
        arguments = {"size": 100, "seconds": seconds, "held": held}
        able = [peer for peer in peers if peer == VELARAY]
        yield [Cell("open transactions", held or "none", peer, "", arguments) for peer in able]


LOADS = {
    "throughput": _throughput,
    "latency": _latency,
    "fan-out": _fan_out,
    "topics": _topics,
    "transactions": _transactions,
    "open transactions": _open_transactions,
}


def cells(loads: Sequence[str], peers: Sequence[str], seconds: float) -> list[list[Cell]]:
    """The cells of one round. Those of a group are comparable; they take turns."""
    others = [peer for peer in peers if peer != RELAXED]
    return [
        group
        for load in LOADS
        if load in loads
        for group in LOADS[load](peers if load == "latency" else others, seconds)
        if group
    ]


def warm_up(loads: Sequence[str], peers: Sequence[str], seconds: float) -> list[Cell]:
    """What runs first and isn't counted: byte code, JVMs and page caches are cold."""
    _, one_kib, *_ = _throughput(peers, seconds)
    *_, transactions = _transactions(peers, seconds)
    return one_kib + (transactions if "transactions" in loads else [])


def in_turn(group: list[Cell], number: int) -> list[Cell]:
    """The group in the order for round ``number``: each round another one begins."""
    shift = number % len(group)
    return group[shift:] + group[:shift]
