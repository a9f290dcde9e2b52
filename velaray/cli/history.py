"""``velaray subscriptions describe``, ``state`` and ``undo``, and ``velaray messages explain``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from typing import Any

import click

from velaray.broker.explain import described as facts_and_now
from velaray.broker.explain import history_of
from velaray.broker.history import (
    PointInTime,
    described,
    entry_at,
    positions_of,
    published_at,
    state_at,
    subscriptions_of,
)
from velaray.cli.admin import MessageIdType, TimeType, subscriptions
from velaray.cli.common import (
    Group,
    JournalsPlace,
    Output,
    time_text,
    with_admin,
    with_keys,
    with_output,
)
from velaray.cli.journal import run_reading, with_data
from velaray.client.admin import Admin
from velaray.client.exceptions import VelarayError
from velaray.client.message_id import MessageId
from velaray.events.ids import InvalidMessageIdError, Position, TopicName
from velaray.events.ids import MessageId as StoredId
from velaray.journal.store import LedgerStore
from velaray.topology.stores import open_store

# `subscriptions` is the group, with the commands of this module.
__all__ = ["PointInTimeType", "messages", "subscriptions", "why"]

Found = Mapping[str, Any]
_FIRST_MS = 10**11  # smaller numbers are event numbers: as times they would be before 1974


class PointInTimeType(click.ParamType):
    """A message id (for its publish time), a time, or the number of an event."""

    name = "moment"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> PointInTime | Position:
        """Parse the argument."""
        if value.isascii() and value.isdigit() and int(value) < _FIRST_MS:
            return PointInTime(sequence=int(value))
        if ")" in value or (value.count(":") == 1 and "-" not in value):
            try:
                return StoredId.parse(value).position
            except InvalidMessageIdError as error:
                self.fail(str(error), param, ctx)
        return PointInTime(at_ms=TimeType().convert(value, param, ctx))


@subscriptions.command("describe")
@click.argument("topic")
@click.argument("subscription")
@with_admin
def describe(show: Output, admin: Admin, topic: str, subscription: str) -> None:
    """Describe the state of SUBSCRIPTION of TOPIC, and the reason if nothing is delivered.

    \b
    Example:
      velaray subscriptions describe orders billing
    """
    found = admin.describe_subscription(topic, subscription)
    if show.as_json:
        show.value(found)
        return
    for name, one in found.items():
        click.echo("\n".join([name, *(f"  {line}" for line in _lines(one))]))


def _lines(found: Found) -> Iterator[str]:
    kind = found["type"] or f"unknown: {_without_consumers(found)}"
    yield f"type: {kind}" + ("" if found["durable"] else " (non-durable)")
    yield (
        f"cursor: everything up to {found['mark_delete']} is acknowledged, or lies before the "
        f"subscription's start (offset {found['acked_before']} of {found['end_offset']})"
    )
    waits = "wait for the consumer of their key" if kind == "KEY_SHARED" else "wait for redelivery"
    yield f"backlog: {found['backlog']} entries, {found['waiting']} of them {waits}"
    yield from _delayed(found)
    yield f"acknowledged ranges: {_some(found['holes'], map(_span, found['first_holes']))}"
    halves = (
        f"{one['position']} (left: {', '.join(map(str, one['remaining']))})"
        for one in found["first_partial"]
    )
    yield f"partly acknowledged batches: {_some(found['partial'], halves)}"
    if found["redelivered"]:
        counts = (f"{one['position']} {one['count']} times" for one in found["redelivered"])
        yield f"redelivered: {', '.join(counts)}"
    for each in found["consumers"]:
        yield from _consumer(each)
    for holdup in found["holdups"] or ({"text": "nothing: entries are being delivered"},):
        yield f"what holds it back: {holdup['text']}"


def _delayed(found: Found) -> Iterator[str]:
    if ranges := found.get("first_delayed"):
        more = ", ..." if found["more_delayed"] else ""
        yield f"delayed: {', '.join(map(_span, ranges))}{more} wait for their delivery times"
    elif found["delayed"]:
        yield f"delayed: {found['delayed']} entries wait for their delivery time"


def _without_consumers(found: Found) -> str:
    left_ms = found.get("last_left_ms")
    if left_ms is None:
        return "no consumer is connected"
    return f"the last consumer left at {time_text(left_ms)}"


def _consumer(found: Found) -> Iterator[str]:
    standing = "" if found["active"] else ", standby"
    where = f" at {found['address']}" if found["address"] else ""
    yield (
        f"consumer {found['name']}{where}: {found['unacked']} un-acknowledged, "
        f"can take {max(found['permits'], 0)} messages{standing}"
    )
    if found["held"]:
        yield f"  holds {_some(None, map(_span, found['held']))}"


def _span(found: Found) -> str:
    if found["first"] == found["last"]:
        return str(found["first"])
    return f"{found['first']} to {found['last']}"


def _some(count: int | None, shown: Iterator[str]) -> str:
    """``shown`` as text, with a note if ``count`` says that there are more."""
    texts = list(shown)
    if count is None:
        return ", ".join(texts)
    if not count:
        return "none"
    more = ", ..." if count > len(texts) else ""
    return f"{count}: {', '.join(texts)}{more}"


@subscriptions.command("state")
@click.argument("topic")
@click.argument("subscription")
@click.option(
    "--at",
    type=PointInTimeType(),
    help="A time, a message id (its publish time) or an event's number; default: now.",
)
@with_data
@with_output
def state(
    show: Output, topic: str, subscription: str, at: PointInTime | Position | None, data: str
) -> None:
    """Show the cursor of SUBSCRIPTION of TOPIC at a point in time, from its journal on disk.

    The cluster need not run. A running cluster isn't called.

    \b
    Example:
      velaray subscriptions state orders billing --at 2026-01-31T12:00
    """
    store = open_store(data)
    name = TopicName.parse(topic)
    found = run_reading(_states(store, name, subscription, at or PointInTime()), store)
    if show.as_json:
        show.value(found)
        return
    for one in found:
        click.echo("\n".join([one["topic"], *(f"  {line}" for line in _past(one))]))


async def _states(
    store: LedgerStore, topic: TopicName, subscription: str, at: PointInTime | Position
) -> list[dict[str, Any]]:
    keys = await subscriptions_of(store, topic, subscription)
    if isinstance(at, Position) and len(keys) > 1:
        raise click.UsageError("a message id belongs to one partition: name the partition")
    found = []
    for key in keys:
        point_in_time = at
        if isinstance(point_in_time, Position):
            point_in_time = PointInTime(at_ms=await published_at(store, key, point_in_time))
        past = await state_at(store, key, point_in_time)
        found.append(described(past, key, await positions_of(store, key)))
    return found


def _past(found: Found) -> Iterator[str]:
    yield f"after event {found['event']}" + (
        f", {time_text(found['atMs'])}" if found["atMs"] else ""
    )
    if not found["created"]:
        yield "the subscription wasn't created yet"
        return
    yield (
        f"cursor: everything up to {found['markDelete']} was acknowledged, or lies before the "
        f"subscription's start (offset {found['ackedBefore']})"
    )
    acked_ranges = found["ackedRanges"]
    yield f"acknowledged ranges: {_some(len(acked_ranges), map(_span, acked_ranges))}"
    partial = found["partial"]
    halves = (str(one["position"]) for one in partial)
    yield f"partly acknowledged batches: {_some(len(partial), halves)}"


@subscriptions.command("undo")
@click.argument("topic")
@click.argument("subscription")
@click.option(
    "--to",
    type=PointInTimeType(),
    help="A time or an event's number; default: just before the last move.",
)
@click.option("--yes", is_flag=True, help="Apply the change; without this option it is only shown.")
@with_admin
def undo(
    show: Output,
    admin: Admin,
    topic: str,
    subscription: str,
    to: PointInTime | Position | None,
    yes: bool,
) -> None:
    """Undo a mistaken seek, skip or expiry of SUBSCRIPTION of TOPIC.

    The cursor returns to its state before; what consumers acknowledged since stays acknowledged.
    Partitions where nothing moved are left out. Nothing is changed if a partition would refuse
    because messages that it would have to deliver again are trimmed.

    \b
    Example:
      velaray subscriptions undo orders billing --yes
    """
    if isinstance(to, Position):
        raise click.UsageError("--to takes a time or the number of an event")
    point_in_time = to or PointInTime()
    found = admin.undo(
        topic, subscription, event=point_in_time.sequence, time_ms=point_in_time.at_ms, preview=True
    )
    failed: dict[str, str] = {}
    if yes:
        # Undo to the event of each partition's plan, so later changes don't alter the outcome.
        for name, one in found.items():
            try:
                found[name] = admin.undo(name, subscription, event=one["after_event"])[name]
            except VelarayError as error:
                failed[name] = str(error)
    if show.as_json:
        show.value({name: {**one, **_outcome(name, yes, failed)} for name, one in found.items()})
    else:
        for name, one in found.items():
            lines = _undone(one, yes and name not in failed)
            click.echo("\n".join([name, *(f"  {line}" for line in lines)]))
        if not yes:
            click.echo("nothing was changed; apply it with --yes")
    if failed:
        reasons = "; ".join(f"not undone for {name}: {error}" for name, error in failed.items())
        raise click.ClickException(
            f"{reasons}. Repeat the command for each of these partitions by its name"
        )


def _outcome(name: str, yes: bool, failed: Mapping[str, str]) -> Found:
    if name in failed:
        return {"done": False, "error": failed[name]}
    return {"done": yes}


def _undone(found: Found, done: bool) -> Iterator[str]:
    would = "" if done else "would be "
    for move in found["undone"]:
        yield f"{would}undone: {move}"
    yield (
        f"offset {found['acked_before_then']} instead of {found['acked_before']}: "
        f"{found['to_deliver_again']} entries {would}un-acknowledged again, "
        f"{found['to_acknowledge']} {would}acknowledged again"
    )


@click.command("explain")
@click.argument("topic")
@click.argument("subscription")
@click.argument("message", type=MessageIdType())
@click.option(
    "--data",
    type=JournalsPlace(),
    help="Read the journals in this directory or object store instead of asking the cluster.",
)
@with_keys
@with_admin
def explain(
    show: Output,
    admin: Admin,
    topic: str,
    subscription: str,
    message: MessageId,
    data: str | None,
) -> None:
    """Explain the history of MESSAGE of TOPIC in SUBSCRIPTION, and its current state.

    MESSAGE is ledger:entry, with :partition for a partitioned topic, or earliest or latest: the
    first or the last message of a plain topic or partition.

    The history lists when it was published, delivered (and to which consumer), acknowledged,
    negatively acknowledged, moved to the dead-letter topic, skipped or expired, and the
    transactions that it waited for, with their outcome. Events that a crash lost before they were
    written are missing. SUBSCRIPTION pulsar.repl.CLUSTER tells whether another cluster has stored
    it.

    \b
    Example:
      velaray messages explain orders billing 16777216:7
    """
    if data is None:
        found = admin.explain(topic, subscription, message)
    else:
        store = open_store(data)
        name = TopicName.parse(topic)
        found = run_reading(_explain(store, name, subscription, message), store)
    if show.as_json:
        show.value(found)
        return
    for fact in found["facts"]:
        click.echo(f"{time_text(fact['at_ms'])}  {fact['text']}")
    if found["now"] is not None:
        click.echo(f"now: {found['now']['text']}")


@click.group(cls=Group)
def messages() -> None:
    """Inspect single messages."""


messages.add_command(explain)
why = copy(explain)
why.name, why.hidden, why.deprecated = "why", True, True


async def _explain(
    store: LedgerStore, topic: TopicName, subscription: str, message: MessageId
) -> dict[str, Any]:
    found = await subscriptions_of(store, topic, subscription)
    keys = [key for key in found if message.partition() in (-1, key.partition)]
    if len(keys) != 1:
        raise click.UsageError(
            f"name the partition of {topic}: write ledger:entry:partition, or "
            f"{topic.of_partition(0)} for the topic"
        )
    position = await entry_at(store, keys[0], message.position)
    return facts_and_now(await history_of(store, keys[0], position), None)
