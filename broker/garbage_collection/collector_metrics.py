"""What a deleter counts, from 0 at each of its starts."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from velaray.events.ids import ActorKey
from velaray.topology.metrics import Labels, Sample


@dataclass(slots=True)
class CollectorMetrics:
    """Events by what became of them, and ledgers.

    ``sent`` were announced here, ``received`` came here. Of these ``deleted`` named a ledger that
    was deleted then, ``gone`` one that was before, ``in_use`` one that is listed, ``failed`` one
    that can't be deleted now; ``malformed`` ones were no events, and ``forged`` ones name what
    isn't there in that way. What is ``in_use`` or ``failed`` was ``retried``, or is ``dead`` after
    too many times; the others were ``acked``.
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
