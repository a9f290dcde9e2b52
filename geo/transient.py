"""The transient errors of work that concerns another cluster."""

from __future__ import annotations

from velaray.client.exceptions import VelarayError
from velaray.geo.replication.replicator_settings import CannotReplicate
from velaray.topology.transient import TRANSIENT_OR_STORE

TRANSIENT_ABROAD: tuple[type[Exception], ...] = (
    *TRANSIENT_OR_STORE,
    VelarayError,
    CannotReplicate,
    OSError,
)
"""Something of this cluster or of the other one failed."""
