"""What a benchmark returns: rows of measured values, verdicts on goals, and notes."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom.
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
_T += (2.12, 2.11, 2.10, 2.09, 2.09)
_T_BEYOND = 2.09


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of one subject in one case; ``values`` has one value per round."""

    case: str
    subject: str
    measure: str
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.values)


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio's geometric mean and the bounds that hold with 95 % confidence."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: list[float]) -> Interval:
        """From two ratios or more, all above 0."""
        logs = [math.log(ratio) for ratio in ratios]
        freedom = len(logs) - 1
        quantile = _T[freedom - 1] if freedom <= len(_T) else _T_BEYOND
        half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
        mean = statistics.fmean(logs)
        return cls(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal, what was measured, and whether the one is met by the other.

    ``low`` and ``high`` hold ``measured`` with 95 % confidence; None if there were too few rounds.
    """

    goal: str
    measured: float
    limit: float
    at_least: bool = False
    low: float | None = None
    high: float | None = None

    @property
    def met(self) -> bool:
        """Whether ``measured`` is at most ``limit``; at least if that's the goal."""
        if self.at_least:
            return self.measured >= self.limit
        return self.measured <= self.limit

    @property
    def bound(self) -> str:
        """The goal as text."""
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"


@dataclass(slots=True)
class Result:
    """Everything that one benchmark found. Ratios are to the rows of ``baseline``."""

    name: str
    settings: dict[str, str]
    baseline: str
    rows: list[Row] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def ratio(self, row: Row) -> float | None:
        """``row`` over the baseline's row of the same case and measure, if there is one."""
        if row.subject == self.baseline:
            return None
        for other in self.rows:
            same = (other.case, other.measure) == (row.case, row.measure)
            if same and other.subject == self.baseline and other.median:
                return row.median / other.median
        return None

    def as_json(self) -> dict[str, Any]:
        """For the results file; medians and ratios are written out."""
        return {
            "name": self.name,
            "settings": self.settings,
            "baseline": self.baseline,
            "rows": [
                {**asdict(row), "median": row.median, "ratio": self.ratio(row)} for row in self.rows
            ],
            "verdicts": [{**asdict(verdict), "met": verdict.met} for verdict in self.verdicts],
            "notes": self.notes,
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Result:
        """The inverse of `as_json`."""
        rows = [
            Row(
                *(row[name] for name in ("case", "subject", "measure", "unit")),
                tuple(row["values"]),
            )
            for row in found["rows"]
        ]
        verdicts = [
            Verdict(each["goal"], each["measured"], each["limit"], each["at_least"])
            for each in found["verdicts"]
        ]
        return cls(
            found["name"], found["settings"], found["baseline"], rows, verdicts, found["notes"]
        )


class Samples:
    """Collects values round by round; rows come out by case and measure, as first used."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str, str, str], list[float]] = {}

    def add(self, case: str, subject: str, measure: str, unit: str, value: float) -> None:
        """Note the value of one more round."""
        self._values.setdefault((case, subject, measure, unit), []).append(value)

    def rows(self) -> list[Row]:
        """Everything noted, one row per quantity."""
        rows = [Row(*key, tuple(values)) for key, values in self._values.items()]
        places = list(dict.fromkeys((row.case, row.measure) for row in rows))
        return sorted(rows, key=lambda row: places.index((row.case, row.measure)))
