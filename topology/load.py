"""The load of a host, and which topic should leave it.

A host's CPU time is known for the whole process only. It is attributed to groups of actors by the
commands that they decided: an entry is a command of its partition, a lease of entries and an
acknowledgement are commands of their subscription.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from velaray.topology.hosted_actors import HostedActors
from velaray.topology.placement import group_of

SAMPLE_S = 5.0
BUSY_SHARE = 0.35
"""A group that takes this part of a core may leave a shared host."""
OTHERS_SHARE = 0.05
"""It leaves only if the other groups of the host take this part of a core: it slows them down."""
BUSY_SAMPLES = 3
QUIET_SHARE = 0.05
"""A group that takes less than this part of a core returns to a shared host."""
QUIET_SAMPLES = 12


@dataclass(frozen=True, slots=True)
class Load:
    """The parts of a core that the groups of a host took."""

    shares: Mapping[str, float]

    @property
    def busiest(self) -> str:
        """The group that took most; "" if there is none."""
        return max(self.shares, key=lambda group: self.shares[group], default="")


class LoadMeter:
    """Measures the load of a process between two calls."""

    def __init__(self, hosted: HostedActors) -> None:
        self._hosted = hosted
        self._before: dict[str, int] = {}
        self._at = (0.0, 0.0)

    def sample(self, now_s: float, cpu_s: float) -> Load:
        """The load since the last call, given the time and the CPU time of this process."""
        done: Counter[str] = Counter()
        for key, actor in self._hosted:
            done[group_of(key)] += actor.work()
        # A group whose actors were started again counts from 0.
        news = {group: max(0, count - self._before.get(group, 0)) for group, count in done.items()}
        total, (then_s, then_cpu_s) = sum(news.values()), self._at
        self._before, self._at = dict(done), (now_s, cpu_s)
        if not total or now_s <= then_s:
            return Load(dict.fromkeys(news, 0.0))
        busy = (cpu_s - then_cpu_s) / (now_s - then_s)
        return Load({group: busy * count / total for group, count in news.items()})


class BusyRule:
    """Chooses the group that should leave a shared host."""

    def __init__(self) -> None:
        self._group = ""
        self._samples = 0

    def chosen(self, load: Load) -> str:
        """The group that was too busy in the last `BUSY_SAMPLES`; "": none."""
        group = load.busiest
        share = load.shares.get(group, 0.0)
        others = sum(load.shares.values()) - share
        if share < BUSY_SHARE or others < OTHERS_SHARE:
            group = ""
        self._samples = self._samples + 1 if group and group == self._group else bool(group)
        self._group = group
        return group if self._samples >= BUSY_SAMPLES else ""


class QuietRule:
    """Chooses the group that should leave its own host."""

    def __init__(self) -> None:
        self._samples = 0

    def chosen(self, load: Load) -> str:
        """The group of the host if it was quiet in the last `QUIET_SAMPLES`; "" otherwise."""
        quiet = bool(load.shares) and sum(load.shares.values()) < QUIET_SHARE
        self._samples = self._samples + 1 if quiet else 0
        return load.busiest if self._samples >= QUIET_SAMPLES else ""
