"""``velaray produce`` and ``velaray consume``."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from velaray.cli.common import Output, as_text_or_base64, with_service, with_service_and_timeout
from velaray.client.enums import ConsumerType, InitialPosition
from velaray.client.exceptions import Timeout

if TYPE_CHECKING:
    from velaray.client.message import Message
    from velaray.sync.client import Client

_TYPES = {
    "exclusive": ConsumerType.Exclusive,
    "failover": ConsumerType.Failover,
    "shared": ConsumerType.Shared,
}
_STARTS = {"earliest": InitialPosition.Earliest, "latest": InitialPosition.Latest}


@click.command()
@click.argument("topic")
@click.option("-m", "--message", "messages", multiple=True, help="A message; may be repeated.")
@click.option("--key", help="Key of every message.")
@with_service
def produce(
    show: Output, client: Client, topic: str, messages: tuple[str, ...], key: str | None
) -> None:
    """Publish each -m to TOPIC, or each line of standard input if there is no -m.

    Returns when every message is stored durably.

    \b
    Examples:
      velaray produce orders -m first -m second
      velaray produce orders --key berlin < lines.txt
    """
    contents = (text.encode() for text in messages) if messages else _lines()
    producer = client.create_producer(topic, block_if_queue_full=True, batching_enabled=True)
    waiting: deque[Any] = deque()
    count = 0
    for content in contents:
        count += 1
        waiting.append(producer.send_async(content, partition_key=key))
        while waiting and waiting[0].done():
            waiting.popleft().result()
    producer.flush()
    for receipt in waiting:
        receipt.result()
    what = "message" if count == 1 else "messages"
    show.done(f"published {count} {what} to {topic}", published=count)


def _lines() -> Iterator[bytes]:
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


@click.command()
@click.argument("topic")
@click.option("-s", "--subscription", required=True, help="Name of the subscription.")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Stop after this many messages; 0: never stop.",
)
@click.option(
    "--type",
    "kind",
    type=click.Choice(list(_TYPES)),
    default="exclusive",
    show_default=True,
    help="Type of the subscription.",
)
@click.option(
    "--start",
    type=click.Choice(list(_STARTS)),
    default="latest",
    show_default=True,
    help="Where a new subscription starts.",
)
@click.option("--create", is_flag=True, help="Create TOPIC if it doesn't exist.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    help="Fail if the cluster doesn't answer, or no message comes, for this many seconds.",
)
@with_service_and_timeout
def consume(
    show: Output,
    client: Client,
    topic: str,
    subscription: str,
    count: int,
    kind: str,
    start: str,
    create: bool,
    timeout: float | None,
) -> None:
    """Print messages of TOPIC, one a line, and acknowledge each after it is printed.

    TOPIC must exist, or --create is given: a subscription to a mistyped name would wait for ever.

    \b
    Example:
      velaray consume orders -s billing -n 10 --start earliest
    """
    client.get_topic_partitions(topic, create=create)
    consumer = client.subscribe(
        topic,
        subscription,
        _TYPES[kind],
        initial_position=_STARTS[start],
        batch_index_ack_enabled=True,
    )
    limit = None if timeout is None else max(round(timeout * 1000), 1)
    received = 0
    while received < count or not count:
        try:
            message = consumer.receive(limit)
        except Timeout as error:
            raise click.ClickException(
                f"no message of {topic} came in {timeout:g} s, after {received} messages"
            ) from error
        click.echo(_json_line(message) if show.as_json else _line(message))
        sys.stdout.flush()
        consumer.acknowledge(message, receipt=True)
        received += 1


def _line(message: Message[Any]) -> str:
    text = message.data().decode("utf-8", "backslashreplace")
    return f"{_id_text(message)}\t{message.partition_key()}\t{text}"


def _json_line(message: Message[Any]) -> str:
    facts: dict[str, Any] = {
        "id": _id_text(message),
        "topic": message.topic_name(),
        "key": message.partition_key(),
        "properties": message.properties(),
        "publishTime": message.publish_timestamp(),
        "redeliveryCount": message.redelivery_count(),
        **as_text_or_base64(message.data()),
    }
    return json.dumps(facts, ensure_ascii=False)


def _id_text(message: Message[Any]) -> str:
    found = message.message_id()
    parts = (found.ledger_id(), found.entry_id(), found.partition(), found.batch_index())
    return ":".join(map(str, parts))
