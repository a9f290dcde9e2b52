"""What the command line can set."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.systems import registry


@dataclass(frozen=True, slots=True)
class Options:
    """``rounds`` per measurement, ``seconds`` per timed workload, ``peers`` by name.

    After ``minutes`` the comparison with peers begins no further measurement.
    """

    rounds: int = 3
    seconds: float = 1.0
    peers: tuple[str, ...] = registry.NAMES
    minutes: float = 18.5
