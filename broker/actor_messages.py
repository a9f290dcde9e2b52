"""The requests that every actor answers, and requests by name."""

from __future__ import annotations

from typing import Any

from velaray.actors.machine import Reason
from velaray.events.ids import ActorKey
from velaray.topology.messages import Codec, Message, MessageError, Request
from velaray.topology.rpc import RemoteError


class Describe(Request[dict[str, Any]]):
    """The actor's key and its runtime's counters. It also activates the actor."""


class Ledgers(Request[list[dict[str, Any]]]):
    """The ledgers of the actor's journal; none for an actor without a journal."""


class Metrics(Request[list[Any]]):
    """The actor's metrics: `velaray.topology.metrics.Sample` as lists."""


ACTOR_REQUESTS = (Describe, Ledgers, Metrics)
"""They are part of every actor's codec."""


def request_named(key: ActorKey, accepts: Codec, method: str, args: dict[str, Any]) -> Message:
    """The request of ``accepts`` that a name stands for: ``last_message_id``, `LastMessageId`.

    Raises `RemoteError`: NOT_FOUND if the actor ``key`` accepts no such request, INVALID if the
    arguments have the wrong shape.
    """
    if not accepts.knows(method):
        raise RemoteError(Reason.NOT_FOUND, f"a {key.kind} has no method {method!r}")
    try:
        return accepts.from_call(method, args)
    except MessageError as error:
        raise RemoteError(Reason.INVALID, str(error)) from error
