"""What a brain tells about its subscription for one who asks closely: samples, not all."""

from __future__ import annotations

from itertools import islice
from typing import Any

from velaray.actors.cursor import mask_to_words
from velaray.actors.dispatch import Dispatcher
from velaray.actors.subscription import SubscriptionState

SHOWN = 20
"""So many holes, half-acknowledged batches, held ranges and counts are told of, the first ones."""


def details(state: SubscriptionState, dispatcher: Dispatcher, end_offset: int) -> dict[str, Any]:
    """Ranges are (first, last + 1) offsets; batches are (offset, words of what remains)."""
    cursor = state.cursor
    partial = islice(cursor.beyond.all_masks(), SHOWN)
    return {
        "end_offset": end_offset,
        "dead_letters": len(state.dead.intended),
        "first_holes": [list(hole) for hole in islice(cursor.holes(), SHOWN)],
        "first_partial": [[offset, mask_to_words(mask)] for offset, mask in partial],
        "held": {
            view.consumer_id: [list(part) for part in dispatcher.unacked(view.consumer_id)[:SHOWN]]
            for view in dispatcher.consumers()
        },
        "redelivered": [list(pair) for pair in dispatcher.redelivery_counts(SHOWN)],
    }


def whereabouts(state: SubscriptionState, dispatcher: Dispatcher, offset: int) -> dict[str, Any]:
    """Where one entry is now: a word, a sentence, and who holds it."""
    if state.cursor.is_acked(offset):
        return {"where": "acknowledged", "consumer": "", "text": "it is acknowledged"}
    if offset in state.dead.intended:
        text = "it is on its way to the dead-letter topic"
        return {"where": "dead-letter", "consumer": "", "text": text}
    if dispatcher.is_delayed(offset):
        text = "it waits for the time that it is to be delivered at"
        return {"where": "delayed", "consumer": "", "text": text}
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
