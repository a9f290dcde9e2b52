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


def whereabouts(cursor: Cursor, dispatcher: Dispatcher, offset: int) -> dict[str, Any]:
    """Where one entry is now: a word, a sentence, and who holds it."""
    if cursor.is_acked(offset):
        return {"where": "acknowledged", "consumer": "", "text": "it is acknowledged"}
    if holder := dispatcher.holder_of(offset):
        text = f"{holder} has it and hasn't acknowledged it"
        return {"where": "delivered", "consumer": holder, "text": text}
    if not dispatcher.consumers():
        return {"where": "waiting", "consumer": "", "text": "no consumer is connected"}
    if offset >= dispatcher.next_offset:
        text = "it wasn't delivered yet; the subscription's description tells what holds it back"
        return {"where": "not-delivered", "consumer": "", "text": text}
    text = "it waits to be delivered again; the subscription's description tells why"
    return {"where": "waiting", "consumer": "", "text": text}
