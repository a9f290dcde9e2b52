"""Comparing two versions: what is printed of the pairs' ratios."""

from __future__ import annotations

import math

import pytest

from benchmarks.model import Interval


def test_equal_ratios_leave_no_doubt() -> None:
    found = Interval.of([1.25] * 12)
    assert (found.mean, found.low, found.high) == pytest.approx((1.25, 1.25, 1.25))


def test_an_interval_is_that_of_student() -> None:
    """Four logarithms -1, 1, -1, 1: deviation 1.1547, t of 3 degrees 3.18."""
    found = Interval.of([math.exp(sign) for sign in (-1, 1, -1, 1)])
    assert found.mean == pytest.approx(1.0)
    assert math.log(found.high) == pytest.approx(3.18 * 1.1547 / 2, rel=1e-3)
    assert math.log(found.low) == pytest.approx(-math.log(found.high))
