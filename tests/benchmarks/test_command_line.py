"""What the command line takes and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import plan
from benchmarks.__main__ import Wanted, parse
from benchmarks.options import Options


def test_without_arguments_the_comparison_runs() -> None:
    assert parse([]) == Wanted(tuple(plan.LOADS), Options(), None, None)


def test_arguments_select_benchmarks() -> None:
    words = "latency memory --rounds 5 --seconds 0.5 --peers velaray,redis --out x.json"
    peers = ("velaray", "velaray-relaxed", "redis-always", "redis-everysec")
    options = Options(rounds=5, seconds=0.5, peers=peers)
    assert parse(words.split()) == Wanted(("latency", "memory"), options, Path("x.json"), None)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("speed", "no benchmark 'speed'"),
        ("--peers velaray,mars", "no peer 'mars'"),
        ("--rounds 0", "--rounds must be"),
        ("--seconds 0", "--seconds and --minutes more than 0"),
        ("--minutes 0", "--seconds and --minutes more than 0"),
    ],
)
def test_invalid_arguments_are_refused(
    words: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(words.split())
    assert complaint in capsys.readouterr().err
