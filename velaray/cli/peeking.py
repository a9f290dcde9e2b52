"""``velaray topics peek``: messages of a topic, which stay where they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import click

from velaray.cli.common import Output, as_text_or_base64, with_admin
from velaray.cli.compaction import topics
from velaray.client.admin import Admin, PeekedEntry
from velaray.events.ids import TopicName
from velaray.wire.batches import BatchLayout

# The group, with the command of this module.
__all__ = ["topics"]

Numbered = Callable[[int], PeekedEntry | None]
"""Returns the entry with this number, from 1; None or an entry again if there are fewer."""


@dataclass(frozen=True, slots=True)
class _Message:
    """A message of an entry; ``index`` is its number in a batch, -1 without one."""

    topic: str
    entry: PeekedEntry
    index: int
    data: bytes
    key: str
    properties: dict[str, str]

    @property
    def id(self) -> str:
        """The id, in the form of `velaray consume`."""
        found = self.entry.message_id
        parts = (found.ledger_id(), found.entry_id(), found.partition(), self.index)
        return ":".join(map(str, parts))


@topics.command("peek")
@click.argument("topic")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Show so many messages.",
)
@click.option(
    "-s",
    "--subscription",
    help="Show what this subscription would get next, not the newest messages.",
)
@with_admin
def peek(show: Output, admin: Admin, topic: str, count: int, subscription: str | None) -> None:
    """Print messages of TOPIC, one a line, and take none of them.

    They are the newest messages, in the order of their times. --subscription shows the first
    messages in entries that it hasn't acknowledged instead, and a batch always as a whole.

    \b
    Examples:
      velaray topics peek orders -n 10
      velaray topics peek orders --subscription billing -o json
    """
    found: list[_Message] = []
    for name in TopicName.parse(topic).members(admin.partitions(topic)):
        numbered = _numbered(admin, str(name), subscription)
        found += _gathered(str(name), numbered, count, newest=subscription is None)
    found.sort(key=lambda message: message.entry.publish_time)
    for message in found[-count:] if subscription is None else found[:count]:
        click.echo(_json_line(message) if show.as_json else _line(message))


def _numbered(admin: Admin, partition: str, subscription: str | None) -> Numbered:
    if subscription is None:
        return lambda number: admin.topics.examine(partition, number)
    return lambda number: admin.subscriptions.peek(partition, subscription, number)


def _gathered(partition: str, numbered: Numbered, count: int, *, newest: bool) -> list[_Message]:
    """Messages of entries from the first number on, at least ``count`` if there are so many."""
    found: list[_Message] = []
    last = None
    for number in range(1, count + 1):
        entry = numbered(number)
        if entry is None or entry.message_id == last:
            break
        last = entry.message_id
        inside = list(_messages(partition, entry))
        found = [*inside, *found] if newest else [*found, *inside]
        if len(found) >= count:
            break
    return found


def _messages(partition: str, entry: PeekedEntry) -> Iterator[_Message]:
    count = entry.messages_in_batch
    if count is None or entry.encrypted:
        properties = dict(entry.properties)
        yield _Message(partition, entry, -1, entry.payload, entry.key, properties)
        return
    batch = BatchLayout(entry.payload, 0, count)
    for index, data in enumerate(batch.values(0, count)):
        single = batch.single(index)
        key = "" if single is None else single.partition_key
        pairs = [] if single is None else single.properties
        properties = {pair.key: pair.value for pair in pairs}
        yield _Message(partition, entry, index, data, key, properties)


def _line(message: _Message) -> str:
    text = message.data.decode("utf-8", "backslashreplace")
    at = datetime.fromtimestamp(message.entry.publish_time / 1000, UTC)
    return f"{message.id}\t{at.isoformat(timespec='milliseconds')}\t{message.key}\t{text}"


def _json_line(message: _Message) -> str:
    facts = {
        "id": message.id,
        "topic": message.topic,
        "key": message.key,
        "properties": message.properties,
        "publishTime": message.entry.publish_time,
        **as_text_or_base64(message.data),
    }
    return json.dumps(facts, ensure_ascii=False)
