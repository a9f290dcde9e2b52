"""Describes a subscription for people: its state, and why its backlog isn't delivered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from velaray.actors.dispatch.dispatcher import IN_ORDER
from velaray.actors.machine import Reason
from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.actors.subscription.cursor import words_to_mask
from velaray.broker.partition import messages as m
from velaray.broker.partition.delayed_delivery import DelayedDeliveryTracker
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.partition.transaction_view import unsettled_from
from velaray.broker.subscription.dispatcher_details import SHOWN
from velaray.broker.subscription.messages import GetDetails, GetHoldings
from velaray.topology.messages import ReplyT, Request
from velaray.topology.rpc import RemoteError

Found = Mapping[str, Any]


class Log(Protocol):
    """What a view of a subscription needs of the partition's log."""

    delayed: DelayedDeliveryTracker

    @property
    def end_offset(self) -> int:
        """The offset after the newest durable entry."""
        ...


class Subscriptions(Protocol):
    """What a view of a subscription needs of the table of subscriptions."""

    channels: dict[str, SubscriptionChannel]

    async def ask_subscription(self, name: str, request: Request[ReplyT]) -> ReplyT:
        """Call a subscription's dispatcher."""


class Partition(Protocol):
    """What a view of a subscription needs of its partition."""

    topic: str
    runtime: Runtime[PartitionState]
    recovery_ms: tuple[int, int]

    @property
    def log(self) -> Log:
        """The log."""
        ...

    @property
    def subscriptions(self) -> Subscriptions:
        """The table of subscriptions."""
        ...


class Holdup(NamedTuple):
    """One reason why entries aren't delivered: a word for programs, a sentence for people."""

    reason: str
    text: str


_IN_ORDER = {kind.name for kind in IN_ORDER}
_NOTHING = "everything since the subscription's start is acknowledged"


def holdups(found: Found) -> list[Holdup]:
    """The reasons why the backlog isn't delivered; empty if entries are being delivered.

    ``found`` is the dispatcher's report (``stats`` and ``details``), with a sentence about open
    transactions in the log as ``undecided``.
    """
    backlog = found["backlog"]
    if not backlog:
        return [Holdup("nothing-to-deliver", _NOTHING)]
    if not found["consumers"]:
        return [Holdup("no-consumers", f"{backlog} entries wait and no consumer is connected")]
    held = sum(each["unacked"] for each in found["consumers"])
    reasons = [*_blocked(found), *_waits(found)]
    if held:
        names = ", ".join(
            f"{each['unacked']} at {each['name']}" for each in found["consumers"] if each["unacked"]
        )
        text = f"{held} messages are delivered and not acknowledged: {names}"
        reasons.append(Holdup("unacknowledged", text))
    if held < backlog:
        reasons += _without_permits(found)
    return reasons


def _blocked(found: Found) -> Iterator[Holdup]:
    if found["blocked"]:
        yield Holdup(
            "subscription-blocked",
            "consumers hold as many un-acknowledged messages as the subscription may have",
        )
    for each in found["consumers"]:
        if each["blocked"]:
            text = f"consumer {each['name']} holds as many messages as a consumer may"
            yield Holdup("consumer-blocked", text)


def _waits(found: Found) -> Iterator[Holdup]:
    if keys := found["draining"]:
        text = f"{keys} keys wait until their former consumer has acknowledged what it holds"
        yield Holdup("keys-draining", text)
    if dead_letters := found["dead_letters"]:
        text = f"{dead_letters} entries are on their way to the dead-letter topic"
        yield Holdup("dead-letters", text)
    if pending := found.get("pending_entries"):
        who = found["pending_transactions"]
        text = f"{pending} entries are acknowledged in {who} transactions that haven't ended"
        yield Holdup("pending", text)
    for problem in found.get("unreadable", ()):
        text = f"{problem}; it is read again later; to skip it, seek to a later message"
        yield Holdup("unreadable", text)
    if unsettled := found.get("undecided"):
        yield Holdup("open-transaction", unsettled)
    if delayed := found["delayed"]:
        yield Holdup("delayed", f"{delayed} delayed entries wait for their delivery time")


def _without_permits(found: Found) -> Iterator[Holdup]:
    active = [each for each in found["consumers"] if each["active"]]
    if any(each["permits"] > 0 for each in active):
        return
    for each in active:
        text = f"consumer {each['name']} has asked for no more messages: its queue is full"
        yield Holdup("no-permits", text)


async def describe_subscription(
    partition: Partition, request: m.DescribeSubscription
) -> dict[str, Any]:
    """The current state of a subscription, by offset and by position.

    Raises `RemoteError` (NOT_FOUND) if there is no such subscription.
    """
    name, end = request.name, partition.log.end_offset
    channel = partition.subscriptions.channels.get(name)
    if channel is not None and not channel.durable:
        details = await channel.ask(GetDetails(end))
    elif name in partition.runtime.state.subscriptions:
        details = await partition.subscriptions.ask_subscription(name, GetDetails(end))
    else:
        raise RemoteError(Reason.NOT_FOUND, f"{partition.topic} has no subscription {name!r}")
    found: dict[str, Any] = {**details}
    channel = partition.subscriptions.channels.get(name)
    found["undecided"] = unsettled_from(partition)
    found["unreadable"] = [] if channel is None else channel.unreadable.described()
    return {
        "topic": partition.topic,
        "subscription": name,
        "durable": channel is None or channel.durable,
        "type": found["type"],
        "last_left_ms": found.get("last_left_ms"),
        "mark_delete": _position(partition, found["acked_before"] - 1),
        "acked_before": found["acked_before"],
        "end_offset": end,
        "backlog": found["backlog"],
        "next_offset": found["next_offset"],
        "waiting": found["waiting"],
        "holes": found["holes"],
        "first_holes": [_range(partition, *acked_range) for acked_range in found["first_holes"]],
        "partial": found["partial"],
        "first_partial": [_batch(partition, *batch) for batch in found["first_partial"]],
        "redelivered": [
            {"offset": offset, "position": _position(partition, offset), "count": count}
            for offset, count in found["redelivered"]
        ],
        "delayed": found["delayed"],
        **await _delayed(partition, name, found),
        "dead_letters": found["dead_letters"],
        "consumers": _consumers(partition, channel, found),
        "holdups": [holdup._asdict() for holdup in holdups(found)],
    }


def _consumers(
    partition: Partition, channel: SubscriptionChannel | None, found: Found
) -> list[dict[str, Any]]:
    """The consumers, with their addresses and what they hold."""
    connected = {} if channel is None else channel.consumers
    consumers = []
    for each in found["consumers"]:
        known = connected.get(each["number"])
        peer = None if known is None else known.connection.peer
        held = [_range(partition, *part) for part in found["held"][each["number"]]]
        consumers.append({**each, "address": peer, "held": held})
    return consumers


async def _delayed(partition: Partition, name: str, found: Found) -> dict[str, Any]:
    """The first ranges of entries whose delivery time hasn't come, and the earliest of these times.

    They are those of the log: the dispatcher knows only those that it was fed. Exclusive and
    Failover subscriptions delay nothing. Ranges that are wholly acknowledged are left out.
    """
    delayed, end = partition.log.delayed, partition.log.end_offset
    ranges = delayed.ranges(found["acked_before"], end, SHOWN)
    channel = partition.subscriptions.channels.get(name)
    if found["type"] in _IN_ORDER or not ranges or (channel is not None and not channel.durable):
        return {"first_delayed": [], "more_delayed": False, "next_due_ms": None}
    flat = [border for part in ranges for border in part]
    _, whole = await partition.subscriptions.ask_subscription(name, GetHoldings(flat))
    left = [part for number, part in enumerate(ranges) if number not in whole]
    return {
        "first_delayed": [_range(partition, *part) for part in left],
        "more_delayed": len(ranges) == SHOWN,
        "next_due_ms": delayed.next_ms if left else None,
    }


def _position(partition: Partition, offset: int) -> str:
    """``ledger:entry``, as clients see it; entry -1 before the first kept entry."""
    found = partition.runtime.state.table.position_before(offset + 1)
    return f"{found.ledger_id}:{found.entry_id}"


def _range(partition: Partition, first: int, end: int) -> dict[str, Any]:
    return {
        "first_offset": first,
        "end_offset": end,
        "first": _position(partition, first),
        "last": _position(partition, end - 1),
    }


def _batch(partition: Partition, offset: int, words: list[int]) -> dict[str, Any]:
    mask = words_to_mask(words)
    return {
        "offset": offset,
        "position": _position(partition, offset),
        "remaining": [index for index in range(mask.bit_length()) if mask >> index & 1],
    }
