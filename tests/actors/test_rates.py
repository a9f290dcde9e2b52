"""Rates: what goes through in the long run is the rate, and a second's worth at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velaray.actors.machine import InvariantViolation
from velaray.actors.rates import Bucket, DispatchLimit, DispatchRate, PublishRate


def test_a_burst_of_one_second_passes_before_the_rate_applies() -> None:
    bucket = Bucket(10)
    assert [bucket.take(1, 100.0) for _ in range(10)] == [0.0] * 10
    assert bucket.take(1, 100.0) == pytest.approx(0.1)
    assert bucket.take(1, 100.2) == 0.0
    assert bucket.take(20, 200.0) == pytest.approx(1.0)  # more than there is: what follows waits
    assert bucket.take(0, 150.0) == pytest.approx(1.0)  # a clock that went back gives nothing


@given(st.integers(1, 1000), st.lists(st.integers(1, 50), min_size=1, max_size=100))
def test_waiting_as_requested_keeps_the_rate(rate: int, sizes: list[int]) -> None:
    bucket, now = Bucket(rate), 0.0
    for size in sizes:
        now += bucket.take(size, now)
    assert now == pytest.approx(max(sum(sizes) - rate, 0) / rate, abs=1e-6)


def test_the_stricter_of_messages_and_bytes_counts() -> None:
    rate = PublishRate(10, 1000)
    assert rate.take(1, 3000, 0.0) == pytest.approx(2.0)
    assert PublishRate(10, -1).take(20, 1 << 30, 0.0) == pytest.approx(1.0)
    assert PublishRate(0, 0).take(1000, 1 << 30, 0.0) == 0.0


def test_a_rate_of_zero_is_unlimited() -> None:
    with pytest.raises(InvariantViolation):
        Bucket(0)


def test_deliveries_wait_when_their_units_are_used_up() -> None:
    rate = DispatchRate(DispatchLimit(10, 0, 2, False))
    assert rate.earn(100.0) == 0.0
    assert rate.fit([(4, 1 << 30)] * 5) == 3  # the third one exceeds the units of a period
    rate.take(12, 3 << 30)
    assert rate.fit([(1, 1)]) == 0
    assert rate.earn(100.0) == pytest.approx(0.6)  # 5 a second: 2 that were too many, and one
    assert rate.earn(100.6) == pytest.approx(0.0)
    assert rate.earn(500.0) == 0.0
    assert rate.fit([(1, 1)] * 20) == 10  # no more than a period's units are saved


def test_deliveries_are_limited_by_messages_and_by_bytes() -> None:
    rate = DispatchRate(DispatchLimit(10, 1000, 1, False))
    rate.earn(0.0)
    assert rate.fit([(1, 600)] * 10) == 2
    assert DispatchRate(DispatchLimit(-1, 1000, 1, False)).fit([(50, 1)] * 2000) == 1000


def test_a_relative_limit_is_above_the_publish_rate() -> None:
    rate = DispatchRate(DispatchLimit(10, 0, 1, True))
    rate.earn(0.0)
    rate.take(100, 0)
    rate.earn(1.0, (89.0, 0.0))
    assert rate.fit([(1, 1)] * 20) == 9


@given(st.integers(1, 1000), st.integers(1, 5), st.lists(st.integers(1, 50), min_size=1))
def test_deliveries_keep_the_rate(messages: int, period_s: int, sizes: list[int]) -> None:
    rate, now = DispatchRate(DispatchLimit(messages, 0, period_s, False)), 0.0
    for size in sizes:
        while not (rate.earn(now) <= 0 and rate.fit([(size, 1)])):
            now += max(rate.earn(now), 1e-6)
        rate.take(size, size)
    allowed = messages + messages / period_s * now
    assert sum(sizes[:-1]) <= allowed + 1e-3
