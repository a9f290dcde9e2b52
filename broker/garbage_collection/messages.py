"""The messages of a garbage collector."""

from __future__ import annotations

from velaray.broker.actor_messages import ACTOR_REQUESTS
from velaray.topology.messages import Codec, Request


class EnqueueDeletion(Request[None]):
    """Publish an event for each of these ledgers of ``journal``, a key's text.

    All of them are stored when the answer comes. Refused UNAVAILABLE: then any of them may be
    stored, and all may be published again. Refused INVALID if the journal has no such ledgers.
    """

    journal: str
    ledger_ids: list[int]


class AcknowledgeDeadLetters(Request[None]):
    """Acknowledge dead letters durably: (ledger, entry, partition) of each.

    Refused UNAVAILABLE: then some may be acknowledged, and all may be acknowledged again.
    """

    message_ids: list[tuple[int, int, int]]


TO_COLLECTOR = Codec(*ACTOR_REQUESTS, EnqueueDeletion, AcknowledgeDeadLetters)
"""What a garbage collector accepts."""
