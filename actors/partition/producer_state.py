"""The state of one producer name in a partition."""

from __future__ import annotations

from dataclasses import dataclass

from velaray.actors.partition.interleaving import Interleaving
from velaray.actors.partition.skipped_sequence_ids import Skipped


@dataclass(slots=True)
class Producer:
    """What is known of a producer name. Sequence ids are -1 until there is one. One that sends
    to another cluster, its ``origin``, has nothing to do with an own one of the same name.
    ``skipped`` are ids that may still come; None if there are none."""

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
