"""The messages of a transaction coordinator."""

from __future__ import annotations

from typing import Any

from velaray.actors.coordinator.state import Status
from velaray.broker.actor_messages import ACTOR_REQUESTS
from velaray.topology.messages import Codec, Request

Row = dict[str, Any]


class MayJoin(Request[None]):
    """Ask for a participant whether it may accept work; ``incarnation`` is that of its topic.

    Refused NOT_FOUND if there never was such a transaction, CONFLICT if it is decided, NOT_ALLOWED
    if the caller is no participant.
    """

    sequence: int
    topic: str
    subscription: str | None
    incarnation: int


class Stats(Request[Row]):
    """Counts, the newest sequence, the low-water mark, and the time of recovery."""


class Transactions(Request[Row]):
    """The unfinished transactions, oldest first: their number ``total``, and at most ``most`` of
    them.

    ``status`` selects those with this status, ``older_ms`` those that began longer ago.
    """

    most: int
    status: Status | None = None
    older_ms: int = 0


class Transaction(Request[Row]):
    """The details of one transaction; of a finished one only the verdict.

    ``untold`` are the participants that its end waits for. Refused NOT_FOUND.
    """

    sequence: int


class Abort(Request[bool]):
    """Abort a transaction of any owner; returns whether all participants have applied the verdict.

    A repetition changes nothing. Refused NOT_FOUND, and CONFLICT if it is committed.
    """

    sequence: int


TO_COORDINATOR = Codec(*ACTOR_REQUESTS, MayJoin, Stats, Transactions, Transaction, Abort)
"""What a coordinator accepts."""
