"""The limits of connections that follow from a cluster's settings."""

from __future__ import annotations

from velaray.topology.config import ClusterConfig
from velaray.wire.guard import ConnectionLimits


def connection_limits(config: ClusterConfig) -> ConnectionLimits:
    """The limits of a listener for clients."""
    return ConnectionLimits(
        config.max_connections,
        config.max_connections_per_address,
        config.buffer_memory_mib << 20,
    )
