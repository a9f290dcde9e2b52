"""What the command line can set."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """``rounds`` per measurement, ``seconds`` per timed workload, ``peers`` by name."""

    rounds: int = 3
    seconds: float = 3.0
    peers: tuple[str, ...] = ("velaray", "redis")
