"""What a brain tells about its subscription for one who asks closely: samples, not all."""

from __future__ import annotations

from itertools import islice
from typing import Any

from velaray.actors.cursor import Cursor, mask_to_words
from velaray.actors.dispatch import Dispatcher

SHOWN = 20
"""So many holes, half-acknowledged batches, held ranges and counts are told of, the first ones."""


def details(cursor: Cursor, dispatcher: Dispatcher, end_offset: int) -> dict[str, Any]:
    """Ranges are (first, last + 1) offsets; batches are (offset, words of what remains)."""
    partial = cursor.partials(cursor.acked_before, end_offset)
    return {
        "end_offset": end_offset,
        "first_holes": [list(hole) for hole in islice(cursor.holes(), SHOWN)],
        "first_partial": [[offset, mask_to_words(mask)] for offset, mask in partial[:SHOWN]],
        "held": {
            view.consumer_id: [list(part) for part in dispatcher.unacked(view.consumer_id)[:SHOWN]]
            for view in dispatcher.consumers()
        },
        "redelivered": [list(pair) for pair in dispatcher.redelivery_counts(SHOWN)],
    }
