"""The index of a generation of compacted entries: the machine of its journal.

The journal of a generation has the kept entries, in the order of the log, and then one event that
completes it. The machine decides nothing: the compactor stages the events, and the machine folds
them, for checkpoints, for readers and for verification of the journal.

Events: EntryCompacted, GenerationCompleted.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from google.protobuf.message import Message

from velaray.actors.machine import Decision, require
from velaray.actors.subscription.cursor import words_to_mask
from velaray.events.events_pb2 import EntryCompacted, GenerationCompleted

PART = 1 << 16
"""Kept entries per segment."""

_ABOUT, _OFFSETS, _MASKS = "about", "offsets/", "masks/"
_ITEM = "Q"


@dataclass(slots=True)
class CompactedIndex:
    """The kept offsets, ascending, and the masks of partly kept batches, by offset.

    ``horizon`` is 0 until the generation is complete: then everything below it is compacted.
    ``ledgers`` are those of the kept entries, as (ledger id, offset of its entry 0).
    """

    offsets: array[int] = field(default_factory=lambda: array(_ITEM))
    masks: dict[int, int] = field(default_factory=dict)
    horizon: int = 0
    ledgers: list[tuple[int, int]] = field(default_factory=list)


class CompactedIndexMachine:
    """Folds the journal of one generation."""

    def initial(self) -> CompactedIndex:
        """An empty index."""
        return CompactedIndex()

    def decide(self, state: CompactedIndex, command: Any, now_ms: int) -> Decision:
        """There are no commands. Raises TypeError."""
        raise TypeError(f"a compacted generation doesn't handle {type(command).__name__}")

    def evolve(self, state: CompactedIndex, event: Message) -> None:
        """Apply ``event``. Raises TypeError for an event of a machine."""
        match event:
            case EntryCompacted(offset=offset):
                state.offsets.append(offset)
                if event.kept:
                    state.masks[offset] = words_to_mask(event.kept)
            case GenerationCompleted(horizon=horizon):
                state.horizon = horizon
                state.ledgers = [(ledger.ledger_id, ledger.first) for ledger in event.ledgers]
            case _:
                raise TypeError(f"a compacted generation doesn't handle {type(event).__name__}")

    def check(self, state: CompactedIndex) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        offsets = state.offsets
        ascending = all(a < b for a, b in pairwise(offsets))
        require(ascending, "kept entries are in the order of the log")
        require(set(state.masks).issubset(offsets), "partly kept batches are kept")
        require(all(state.masks.values()), "partly kept batches aren't empty")
        if state.horizon:
            require(not offsets or offsets[-1] < state.horizon, "they are below the horizon")

    def snapshot(self, state: CompactedIndex) -> Mapping[str, bytes]:
        """Segments: ``about``, and for every 65536 kept entries ``offsets/<n>`` and
        ``masks/<n>``."""
        about = {"horizon": state.horizon, "ledgers": state.ledgers}
        segments = {_ABOUT: json.dumps(about, sort_keys=True).encode()}
        for number, first in enumerate(range(0, len(state.offsets), PART)):
            part = state.offsets[first : first + PART]
            masks = [[at, f"{state.masks[at]:x}"] for at in part if at in state.masks]
            segments[f"{_OFFSETS}{number}"] = part.tobytes()
            segments[f"{_MASKS}{number}"] = json.dumps(masks).encode()
        return segments

    def restore(self, segments: Mapping[str, bytes]) -> CompactedIndex:
        """The state whose snapshot is ``segments``."""
        about = json.loads(segments[_ABOUT])
        state = CompactedIndex(
            horizon=about["horizon"], ledgers=[(each[0], each[1]) for each in about["ledgers"]]
        )
        for number in range(sum(name.startswith(_OFFSETS) for name in segments)):
            state.offsets.frombytes(segments[f"{_OFFSETS}{number}"])
            for offset, mask in json.loads(segments[f"{_MASKS}{number}"]):
                state.masks[offset] = int(mask, 16)
        return state
