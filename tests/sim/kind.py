"""The kinds of runs."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of run: with partitions that are synced on a timer, with several clusters, with
    several actors in each process, with rates, with such processes over an object store, or with
    machines that join, machines that are lost and backups besides. At most one holds."""

    relaxed: bool = False
    geo: bool = False
    hosts: bool = False
    rates: bool = False
    store: bool = False
    machines: bool = False

    def option(self) -> str:
        """The option of the command line, after a space; "" for an ordinary run."""
        return "".join(f" --{name}" for name, chosen in self._asdict().items() if chosen)
