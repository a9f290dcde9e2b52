"""Rates: what goes through in the long run is the rate, and a second's worth at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velaray.actors.machine import InvariantViolation
from velaray.actors.rates import Bucket, PublishRate


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
