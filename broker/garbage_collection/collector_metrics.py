"""The counters of a garbage collector, from 0 at each of its starts."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from velaray.events.ids import ActorKey
from velaray.topology.metrics import Labels, Sample


@dataclass(slots=True)
class CollectorMetrics:
    """Numbers of events by outcome, and of ledgers.

    ``sent`` events were published by this garbage collector, ``received`` ones consumed by it. Of
    the received ones, ``deleted`` named a ledger that was deleted then, ``gone`` one that was
    deleted earlier, ``in_use`` one that is listed, and ``failed`` one that can't be deleted now.
    ``malformed`` messages were no events, and ``forged`` events don't match the ledger that they
    name. ``in_use`` and ``failed`` events were ``retried``, or are ``dead`` after too many
    attempts; the others were ``acked``.
    """

    sent: int = 0
    received: int = 0
    deleted: int = 0
    gone: int = 0
    in_use: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    malformed: int = 0
    forged: int = 0
    acked: int = 0

    def counts(self) -> dict[str, int]:
        """All of them, by name."""
        return asdict(self)

    def samples(self, cluster: str, key: ActorKey) -> list[Sample]:
        """All of them, as metrics."""
        labels = Labels(cluster, key).of_actor()
        return [
            Sample(f"velaray_ledger_deletion_{name}_total", labels, value)
            for name, value in self.counts().items()
        ]
