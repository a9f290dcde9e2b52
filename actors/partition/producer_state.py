"""The state of one producer name in a partition."""

from __future__ import annotations

from dataclasses import dataclass

from velaray.actors.partition.interleaving import Interleaving
from velaray.actors.partition.skipped_sequence_ids import Skipped


@dataclass(slots=True)
class Producer:
    """The state of a producer name. Sequence ids are -1 until there is one. A producer that sends
    to another cluster, its ``origin``, is distinct from a local one of the same name. ``skipped``
    are ids that may still arrive; None if there are none."""

    index: int
    name: str
    at_ms: int
    last_sequence_id: int = -1
    chunk_sequence_id: int = -1
    chunk_uuid: str = ""
    chunk_id: int = -1
    interleaving: Interleaving | None = None
    origin: str = ""
    skipped: Skipped | None = None
