"""What the command line takes and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS, parse
from benchmarks.options import Options


def test_without_words_everything_runs() -> None:
    assert parse([]) == (list(BENCHMARKS), Options(), None)


def test_words_choose() -> None:
    words = "latency memory --rounds 5 --seconds 0.5 --peers velaray --out x.json"
    expected = Options(rounds=5, seconds=0.5, peers=("velaray",))
    assert parse(words.split()) == (["latency", "memory"], expected, Path("x.json"))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("speed", "no benchmark 'speed'"),
        ("--peers velaray,mars", "no peer 'mars'"),
        ("--rounds 0", "--rounds must be"),
        ("--seconds 0", "--seconds more than 0"),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(words.split())
    assert complaint in capsys.readouterr().err
