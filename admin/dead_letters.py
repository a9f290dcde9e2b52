"""Routes of the admin interface for dead letters: list them, and forget one.

All of them are velaray's own.
"""

from __future__ import annotations

from collections.abc import Iterator

from aiohttp import web

from velaray.admin.binding import Route, given
from velaray.admin.entries import readable
from velaray.admin.http import (
    AdminError,
    Target,
    actor_system_of,
    answer,
    ask_each,
    find_target,
    partition_of,
)
from velaray.broker.partition import messages as m
from velaray.broker.partition.dead_letters import is_for_dead_letters
from velaray.client.admin import dead_letters as operations
from velaray.client.admin.dead_letters import MARKS, DeadLetter
from velaray.events.ids import InvalidMessageIdError, MessageId
from velaray.wire.batches import BatchLayout
from velaray.wire.dead_letters import ORIGIN_MESSAGE_ID, REAL_SUBSCRIPTION, REAL_TOPIC
from velaray.wire.errors import MalformedEntryError
from velaray.wire.messages import is_batch
from velaray.wire.pulsar_pb2 import MessageMetadata
from velaray.wire.replication import REPLICATOR_PREFIX

MOST = 100
"""The most dead letters of an answer."""
SCANNED = 400
"""The entries of a partition that are looked at."""
_AT_ONCE = 50


async def list_letters(request: web.Request) -> web.Response:
    """The newest dead letters of a dead-letter topic, newest first, without those that all its
    subscriptions have acknowledged.

    The 400 newest entries of each partition are looked at. A topic without subscriptions has all.
    """
    target = await find_target(request)
    most = min(max(given(request, operations.MOST), 1), MOST)
    found: list[DeadLetter] = []
    for member in target.members():
        one = Target(member, target.partitions, target.incarnation, target.properties)
        found += await _letters(request, one, most)
    found.sort(key=lambda letter: letter["publishTime"], reverse=True)
    return answer(found[:most])


async def _letters(request: web.Request, target: Target, most: int) -> list[DeadLetter]:
    """The newest letters of a partition."""
    system, (key,) = actor_system_of(request), target.keys()
    found: list[DeadLetter] = []
    before, scanned = None, 0
    while len(found) < most and scanned < SCANNED:
        entries = await system.request(key, m.EntriesBefore(before, _AT_ONCE))
        if not entries:
            break
        letters = [each for entry in entries for each in _letters_in(entry, str(target.name))]
        ids = [MessageId.parse(each["id"]) for each in letters]
        places = [(each.ledger_id, each.entry_id, each.batch_index) for each in ids]
        waits = await system.request(key, m.WhoWaits(places))
        for number, letter in enumerate(letters):
            letter["subscriptions"] = [name for name, held in waits.items() if number in held]
            if letter["subscriptions"] or not waits:
                found.append(letter)
        ledger, entry, _ = entries[-1]["id"]
        before, scanned = (ledger, entry), scanned + len(entries)
    return found[:most]


def _letters_in(entry: m.Entry, topic: str) -> Iterator[DeadLetter]:
    """The messages of an entry, the last one first."""
    metadata = MessageMetadata.FromString(entry["metadata"])
    whole = {pair.key: pair.value for pair in metadata.properties}
    if not is_batch(metadata) or metadata.encryption_keys:
        yield _letter(entry, topic, -1, metadata.partition_key, whole)
        return
    count = metadata.num_messages_in_batch
    try:
        layout = BatchLayout(readable(metadata, entry["payload"]), 0, count)
    except (MalformedEntryError, AdminError):  # it is shown as a whole, and can be forgotten
        yield _letter(entry, topic, -1, "", whole)
        return
    for index in reversed(range(count)):
        single = layout.single(index)
        properties = {} if single is None else {pair.key: pair.value for pair in single.properties}
        yield _letter(entry, topic, index, single.partition_key if single else "", properties)


def _index(letter: DeadLetter) -> int:
    return MessageId.parse(letter["id"]).batch_index


def _letter(
    entry: m.Entry, topic: str, index: int, key: str, properties: dict[str, str]
) -> DeadLetter:
    return {
        "id": ":".join(map(str, (*entry["id"], index))),
        "topic": topic,
        "publishTime": entry["publish_time"],
        "key": key,
        "properties": properties,
        "originTopic": properties.get(REAL_TOPIC, ""),
        "originSubscription": properties.get(REAL_SUBSCRIPTION, ""),
        "originId": properties.get(ORIGIN_MESSAGE_ID, ""),
        "subscriptions": [],
    }


async def forget(request: web.Request) -> web.Response:
    """Forget one dead letter: all subscriptions of the topic count it as acknowledged.

    Without a batch index (``ledger:entry``) all messages of the entry are forgotten. 404 if there
    is no such message; 412 if the topic's name doesn't end with ``-DLQ`` and the message has no
    property of a dead letter; 409 if the topic has no subscription. A repetition changes nothing.
    """
    target = await find_target(request)
    try:
        found = MessageId.parse(request.match_info["message"])
    except InvalidMessageIdError as error:
        raise AdminError(400, str(error)) from error
    target = partition_of(target, found)
    if not is_for_dead_letters(target.name):
        await _check_letter(request, target, found)
    (names,) = await ask_each(request, target, m.Subscriptions())
    if all(name.startswith(REPLICATOR_PREFIX) for name in names):
        raise AdminError(
            409,
            f"{target.name} has no subscription, so only its retention keeps its messages: change "
            "the policy retention, or delete the topic",
        )
    (changed,) = await ask_each(request, target, m.Forget(found.position, found.batch_index))
    return answer({"subscriptions": changed})


async def _check_letter(request: web.Request, target: Target, message: MessageId) -> None:
    """Raise `AdminError` (412) unless the message has a property of a dead letter."""
    (entry,) = await ask_each(request, target, m.EntryAt(message.position))
    letters = list(_letters_in(entry, str(target.name)))
    named = [each for each in letters if message.batch_index in (-1, _index(each))] or letters
    if not all(MARKS & each["properties"].keys() for each in named):
        raise AdminError(
            412,
            f"{message} of {target.name} isn't a dead letter: the topic's name doesn't end with "
            f"-DLQ, and the message lacks the property {REAL_TOPIC}; skip or expire messages of a "
            "subscription instead",
        )


ROUTES: tuple[Route, ...] = (
    Route(operations.LIST, list_letters),
    Route(operations.FORGET, forget),
)
