"""Asks the hosts of a Ray cluster for a journal in an object store, before its next owner reads it.

The process that owned the journal may be alive: the placement directory was lost, or the network
between two nodes is broken. A host that has the journal's log releases the one journal. Without
asking, its log would be ended, and with it all its actors.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import ray
from ray.exceptions import RayError

from velaray.journal.objects.journal_record import Tail
from velaray.journal.objects.sealing import GONE
from velaray.topology.config import ClusterConfig
from velaray.topology.ray_nodes import hosts_in_ray

ANSWER_S: Final = 5.0


class RayOwners:
    """The other hosts of a cluster, as owners of journals."""

    def __init__(self, config: ClusterConfig, host: str) -> None:
        """``host`` is the name of the host that asks."""
        self._config = config
        self._host = host

    async def ask(self, journal: str, tail: Tail) -> int | None:
        """Ask all other hosts at once; see `AskOwner`.

        A former process of the asking host has ended: Ray runs one process for each host.
        """
        names = await asyncio.to_thread(hosts_in_ray, self._config)
        others = [name for name in names if name != self._host]
        answers = await asyncio.gather(*(self._ask(name, journal, tail) for name in others))
        for answer in answers:
            if answer is not None and answer != GONE:
                return answer
        return None if None in answers else GONE

    async def _ask(self, host: str, journal: str, tail: Tail) -> int | None:
        try:
            handle = await asyncio.to_thread(ray.get_actor, host, self._config.ray_namespace)
        except ValueError:
            return GONE  # it was never started, or it has ended for good
        with contextlib.suppress(RayError, TimeoutError):  # it is away, or hangs
            async with asyncio.timeout(ANSWER_S):
                return int(await handle.release_journal.remote(journal, tuple(tail)))
        return None
