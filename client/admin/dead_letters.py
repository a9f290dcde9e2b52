"""Administration of dead letters: messages that were delivered too often."""

from __future__ import annotations

import base64
from typing import Any

from typing_extensions import TypedDict

from velaray.client.admin.calls import call
from velaray.client.admin.connection import ModeT, Resource
from velaray.client.admin.entries import PeekedEntry, entry_of
from velaray.client.admin.errors import NotFound, PreconditionFailed
from velaray.client.admin.operations import Operation, Parameter, Texts, Whole, reads
from velaray.client.admin.paths import message_id, of_topic
from velaray.client.admin.topics import PUBLISH, READ_ENTRY, TOPIC
from velaray.client.message_id import MessageId
from velaray.wire.batches import BatchLayout
from velaray.wire.dead_letters import (
    ORIGIN_MESSAGE_ID,
    ORIGIN_MESSAGE_ID_OLD,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
)
from velaray.wire.errors import MalformedEntryError

MARKS = frozenset({ORIGIN_MESSAGE_ID, ORIGIN_MESSAGE_ID_OLD, REAL_SUBSCRIPTION, REAL_TOPIC})
"""The properties of a dead letter that the message didn't have before."""


class DeadLetter(TypedDict):
    """A dead letter that isn't forgotten.

    ``id`` is ledger:entry:partition:index, with -1 for a topic without partitions and for a message
    outside of a batch. ``subscriptions`` are those of the dead-letter topic that haven't
    acknowledged it. The origin is "" where the properties don't tell it.
    """

    id: str
    topic: str
    publishTime: int
    key: str
    properties: Texts
    originTopic: str
    originSubscription: str
    originId: str
    subscriptions: list[str]


class ForgottenLetter(TypedDict):
    """The subscriptions that hadn't acknowledged the dead letter, and count it as acknowledged
    now."""

    subscriptions: list[str]


MOST = Parameter("most", Whole, 20, "The most dead letters of the answer, up to 100.")

LIST = reads(f"{TOPIC}/deadLetters", list[DeadLetter], MOST)
FORGET = Operation(
    "POST", f"{TOPIC}/deadLetters/{{message}}/forget", answers={200: ForgottenLetter}
)


class DeadLetters(Resource[ModeT]):
    """The messages of dead-letter topics."""

    @call
    async def __call__(self, topic: str, most: int = 20) -> list[dict[str, Any]]:
        """Return the newest dead letters of a dead-letter topic, newest first, without those that
        all subscriptions have acknowledged. The 400 newest entries of each partition are looked
        at."""
        return list(await self._ask(LIST, of_topic(topic), {MOST: most}))

    @call
    async def forget(self, topic: str, letter: MessageId) -> list[str]:
        """Forget one dead letter: all subscriptions of the dead-letter topic count it as
        acknowledged. Return those that hadn't acknowledged it; a repetition returns none.

        Without a batch index all messages of the entry are forgotten. Raises `NotFound` if there is
        no such message, `PreconditionFailed` if it isn't a dead letter, and `Conflict` if the topic
        has no subscription: then only its retention keeps the messages.
        """
        variables = {**of_topic(topic), "message": _text(letter)}
        return list((await self._ask(FORGET, variables))["subscriptions"])

    @call
    async def republish(self, topic: str, letter: MessageId) -> tuple[str, MessageId]:
        """Publish a copy of a dead letter to the topic that it came from. The letter stays. Return
        that topic and the id of the copy.

        Raises `NotFound` if there is no such message, and `PreconditionFailed` if its properties
        don't tell where it came from, or if it is encrypted end to end.
        """
        place = {"ledger": letter.ledger_id(), "entry": letter.entry_id()}
        entry = entry_of(await self._exchange(READ_ENTRY, {**of_topic(topic), **place}))
        data, key, properties = _message(entry, letter.batch_index())
        origin = properties.get(REAL_TOPIC)
        if not origin:
            why = f"the property {REAL_TOPIC} doesn't tell where the message came from"
            raise PreconditionFailed(412, why)
        body: dict[str, Any] = {
            "data": base64.b64encode(data).decode(),
            "encoding": "base64",
            "properties": {name: text for name, text in properties.items() if name not in MARKS},
        }
        if key:
            body["key"] = key
        return origin, message_id(await self._ask(PUBLISH, of_topic(origin), body=body))


def _text(letter: MessageId) -> str:
    parts = (letter.ledger_id(), letter.entry_id(), letter.partition(), letter.batch_index())
    return ":".join(map(str, parts))


def _message(entry: PeekedEntry, index: int) -> tuple[bytes, str, dict[str, str]]:
    """The data, key and properties of one message of an entry; -1 is the first one."""
    if entry.encrypted:
        why = "the message is encrypted end to end: a client with the key must copy it"
        raise PreconditionFailed(412, why)
    count = entry.messages_in_batch
    if max(index, 0) >= (1 if count is None else count):
        raise NotFound(404, f"the entry has no such message: {index}")
    if count is None:
        return entry.payload, entry.key, dict(entry.properties)
    try:
        layout = BatchLayout(entry.payload, 0, count)
    except MalformedEntryError as error:
        raise PreconditionFailed(412, f"the entry is a damaged batch: {error}") from error
    data, single = list(layout.values(0, count))[max(index, 0)], layout.single(max(index, 0))
    if single is None:
        return data, "", {}
    return data, single.partition_key, {pair.key: pair.value for pair in single.properties}
