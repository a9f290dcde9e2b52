"""What a listener admits: the limits of each role, and the memory budget of the process."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from velaray.broker.refusals import refusal_of
from velaray.topology.config import ClusterConfig
from velaray.topology.ray_process import resident_bytes
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.guard import ConnectionGuard
from velaray.wire.limits import Fault

MEASURED_S = 0.5
"""How long a measurement of the memory counts."""

_NEED_MEMORY = (pb.CommandLookupTopic, pb.CommandProducer, pb.CommandSubscribe)
LIMITED: frozenset[type] = frozenset(
    (
        *_NEED_MEMORY,
        pb.CommandPartitionedTopicMetadata,
        pb.CommandGetTopicsOfNamespace,
        pb.CommandGetSchema,
        pb.CommandGetOrCreateSchema,
        pb.CommandGetLastMessageId,
        pb.CommandConsumerStats,
        pb.CommandNewTxn,
    )
)
"""Requests that a role may repeat later without a loss. All others are always served."""


class Admission:
    """Counts the connections and requests of each role, and measures the memory of the process.

    The role "" is that of clients without authentication, and has no limits of its own.
    """

    def __init__(self, config: ClusterConfig, guard: ConnectionGuard) -> None:
        """``guard`` counts what is refused, for the metrics."""
        self.turns = guard.turns
        self._config = config
        self._guard = guard
        self._connections: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self._measured_s = float("-inf")
        self._over_budget = False

    def enter(self, role: str) -> str:
        """Count a connection of a role until `leave`; returns why it is refused, "" if it isn't."""
        most = self._config.max_connections_per_role
        if role and self._connections[role] >= most:
            self._guard.role_refusals += 1
            return f"role {role!r} has {most:,} connections to this process: close some"
        self._connections[role] += 1
        return ""

    def leave(self, role: str) -> None:
        """Note the end of a connection that has entered."""
        _less(self._connections, role)

    def begin(self, role: str) -> None:
        """Note that a request of a role is in work, until `end`."""
        self._requests[role] += 1

    def end(self, role: str) -> None:
        """Note the end of a request."""
        _less(self._requests, role)

    def refusal(self, role: str, command: Any) -> Any:
        """The error with which a command of `LIMITED` is answered now; None if it is admitted."""
        most = self._config.max_requests_per_role
        if role and self._requests[role] >= most:
            self._guard.role_refusals += 1
            text = f"{most:,} requests of role {role!r} are in work: ask again later"
            return refusal_of(command, Fault(text, pb.TooManyRequests))
        if isinstance(command, _NEED_MEMORY) and self._lacks_memory():
            self._guard.memory_refusals += 1
            budget = self._config.memory_budget_mib
            text = f"this process is over its memory budget of {budget:,} MiB: ask again later"
            answer = refusal_of(command, Fault(text, pb.ServiceNotReady))
            if isinstance(answer, pb.CommandLookupTopicResponse):
                # On this very text, clients keep the connection and look up again.
                answer.message = f"Failed to acquire ownership: {text}"
            return answer
        return None

    def _lacks_memory(self) -> bool:
        budget = self._config.memory_budget_mib << 20
        if not budget:
            return False
        now_s = asyncio.get_running_loop().time()
        if now_s - self._measured_s >= MEASURED_S:
            self._measured_s = now_s
            self._over_budget = resident_bytes() > budget
        return self._over_budget


def _less(counts: Counter[str], role: str) -> None:
    counts[role] -= 1
    if not counts[role]:
        del counts[role]
