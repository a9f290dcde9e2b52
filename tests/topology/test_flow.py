"""Counters and rates of what goes one way."""

from __future__ import annotations

from velaray.topology.flow import WINDOW_MS, Flow, Speed
from velaray.topology.metrics import Traffic


def test_messages_bytes_and_redelivered_entries_are_counted() -> None:
    flow = Flow(0)
    flow.count(3, 4, now_ms=5)
    flow.count(2, 3, now_ms=7, again=1)
    total = Traffic()
    total.add(flow)
    assert (total.messages, total.bytes, total.again) == (5, 7, 1)
    assert flow.last_ms == 7


def test_rates_are_means_of_the_last_full_window() -> None:
    flow = Flow(0)
    assert flow.speed(0) == Speed(0, 0, 0)
    flow.count(10, 100, 1_000, again=1)
    assert flow.speed(2_000) == Speed(5, 50, 0.5)  # since the beginning, as no window is full
    assert flow.speed(WINDOW_MS) == Speed(1, 10, 0.1)
    flow.count(100, 100, WINDOW_MS + 1)
    assert flow.speed(WINDOW_MS + 2) == Speed(1, 10, 0.1)
    assert flow.speed(2 * WINDOW_MS) == Speed(10, 10, 0)


def test_an_old_burst_no_longer_counts() -> None:
    flow = Flow(0)
    flow.count(1_000, 1_000, 100)
    hour = 3_600_000
    assert flow.speed(hour).messages < 1
    flow.count(50, 50, 2 * hour)
    assert flow.speed(2 * hour).messages == 0
    assert flow.speed(2 * hour + WINDOW_MS).messages == 5


def test_a_clock_that_is_set_back_makes_no_rate_negative() -> None:
    flow = Flow(50_000)
    flow.count(10, 10, 51_000)
    assert flow.speed(1_000) == Speed(0, 0, 0)
    flow.count(10, 10, 2_000)
    assert flow.speed(3_000).messages >= 0
