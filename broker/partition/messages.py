"""The messages of a topic partition: the requests that actors of its cluster send."""

from __future__ import annotations

from velaray.broker.actor_messages import ACTOR_REQUESTS
from velaray.topology.messages import Codec, Request


class Append(Request[None]):
    """Store one entry for another actor, once for its producer and number; durable then.

    The subscription ``initial_subscription`` is created first. Refused if the topic takes no
    entries.
    """

    producer: str
    number: int
    entry: bytes
    messages: int
    initial_subscription: str | None = None


class EndTransaction(Request[list[str]]):
    """Apply a coordinator's verdict, to the partition or to one of its subscriptions.

    ``alone``: no other partition takes part. Returns the clusters that are to know the
    transaction's participants.
    """

    coordinator: int
    sequence: int
    commit: bool
    alone: bool = False
    subscription: str | None = None


class Subscriptions(Request[list[str]]):
    """The names of the durable subscriptions."""


class FindUnacked(Request[int | None]):
    """The offset of a subscription's ``number``-th (from 1) unacknowledged entry, or None.

    Refused NOT_FOUND if there is no such subscription.
    """

    name: str
    number: int


class HasSubscription(Request[None]):
    """Refused NOT_FOUND if there is no subscription of this name and incarnation: it was deleted.

    A superseded activation doesn't answer.
    """

    name: str
    incarnation: int


class ResumeDeadLetters(Request[None]):
    """Resume publishing the dead letters that a subscription decided on before a crash."""

    name: str
    incarnation: int


TO_PARTITION = Codec(
    *ACTOR_REQUESTS,
    *(Append, EndTransaction, Subscriptions, FindUnacked, HasSubscription, ResumeDeadLetters),
)
"""What a partition accepts."""
