"""``velaray dead-letters``: messages that were delivered too often."""

from __future__ import annotations

import click

from velaray.cli.admin import MessageIdType
from velaray.cli.common import Group, Output, time_text, with_admin
from velaray.cli.confirmation import destroys
from velaray.client.admin import Admin
from velaray.client.message_id import MessageId

_COLUMNS = {
    "id": "ID",
    "moved": "MOVED",
    "originTopic": "FROM",
    "originSubscription": "SUBSCRIPTION",
    "key": "KEY",
    "subscriptions": "HELD BY",
}


@click.group("dead-letters", cls=Group)
def dead_letters() -> None:
    """List dead letters, publish copies of them again, and forget them."""


@dead_letters.command("list")
@click.argument("topic")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1, 100),
    default=20,
    show_default=True,
    help="Show so many, newest first.",
)
@with_admin
def list_letters(show: Output, admin: Admin, topic: str, count: int) -> None:
    """List the newest dead letters of the dead-letter topic TOPIC that aren't forgotten.

    HELD BY are the subscriptions of TOPIC that haven't acknowledged a letter. `velaray topics peek`
    shows the contents.

    \b
    Example:
      velaray dead-letters list orders-billing-DLQ
    """
    found = admin.dead_letters(topic, count)
    if show.as_json:
        show.value(found)
        return
    show.rows(_COLUMNS, [{**each, "moved": time_text(each["publishTime"])} for each in found])


@dead_letters.command("republish")
@click.argument("topic")
@click.argument("letter", type=MessageIdType())
@with_admin
def republish(show: Output, admin: Admin, topic: str, letter: MessageId) -> None:
    """Publish a copy of the dead letter LETTER of TOPIC to the topic that it came from.

    The letter stays. LETTER is an id as `velaray dead-letters list` shows it.

    \b
    Example:
      velaray dead-letters republish orders-billing-DLQ 16777216:0
    """
    origin, sent = admin.dead_letters.republish(topic, letter)
    copy = f"{sent.ledger_id()}:{sent.entry_id()}:{sent.partition()}"
    show.done(f"a copy is stored in {origin} as {copy}", topic=origin, id=copy)


@dead_letters.command("forget")
@click.argument("topic")
@click.argument("letter", type=MessageIdType())
@destroys("forget the dead letter {letter} of {topic}: no consumer gets it any more")
@with_admin
def forget(show: Output, admin: Admin, topic: str, letter: MessageId) -> None:
    """Forget the dead letter LETTER of TOPIC: all its subscriptions count it as acknowledged.

    LETTER is an id as `velaray dead-letters list` shows it. Without the index in the batch all
    messages of the entry are forgotten. Repeating it is harmless.

    \b
    Example:
      velaray dead-letters forget orders-billing-DLQ 16777216:0 --yes
    """
    names = admin.dead_letters.forget(topic, letter)
    said = f"forgotten in {', '.join(names)}" if names else "it was acknowledged already"
    show.done(said, subscriptions=names)
