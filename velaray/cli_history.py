"""``velaray subscriptions describe``: what a subscription holds, and what holds it back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from velaray.admin import Admin
from velaray.cli_admin import subscriptions
from velaray.cli_common import Output, with_admin

Found = Mapping[str, Any]


@subscriptions.command("describe")
@click.argument("topic")
@click.argument("subscription")
@with_admin
def describe(show: Output, admin: Admin, topic: str, subscription: str) -> None:
    """Tell what SUBSCRIPTION of TOPIC holds, and why nothing moves if nothing does."""
    found = admin.describe_subscription(topic, subscription)
    if show.as_json:
        show.value(found)
        return
    for name, one in found.items():
        click.echo("\n".join([name, *(f"  {line}" for line in _lines(one))]))


def _lines(found: Found) -> Iterator[str]:
    kind = found["type"] or "no consumer has said"
    yield f"type: {kind}" + ("" if found["durable"] else " (leaves no trace)")
    yield (
        f"cursor: all up to {found['mark_delete']} is acknowledged "
        f"(offset {found['acked_before']} of {found['end_offset']})"
    )
    yield f"backlog: {found['backlog']} entries, {found['waiting']} of them to be delivered again"
    if found["delayed"]:
        yield f"delayed: {found['delayed']} entries wait for their time"
    yield f"holes: {_some(found['holes'], map(_span, found['first_holes']))}"
    halves = (
        f"{one['position']} (left: {', '.join(map(str, one['remaining']))})"
        for one in found["first_partial"]
    )
    yield f"half-acknowledged batches: {_some(found['partial'], halves)}"
    if found["redelivered"]:
        counts = (f"{one['position']} {one['count']} times" for one in found["redelivered"])
        yield f"delivered again: {', '.join(counts)}"
    for each in found["consumers"]:
        yield from _consumer(each)
    for holdup in found["holdups"] or ({"text": "nothing: entries are on their way"},):
        yield f"what holds it back: {holdup['text']}"


def _consumer(found: Found) -> Iterator[str]:
    standing = "" if found["active"] else ", stands by"
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
    """``shown``, and that there are more if ``count`` says so."""
    texts = list(shown)
    if count is None:
        return ", ".join(texts)
    if not count:
        return "none"
    more = ", ..." if count > len(texts) else ""
    return f"{count}: {', '.join(texts)}{more}"
