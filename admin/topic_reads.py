"""Routes of the admin interface for stored data of a topic: single entries, ids, sizes.

As in Pulsar, the routes for single entries need a partition's name if there are several.
"""

from __future__ import annotations

from aiohttp import web

from velaray.actors.machine import Reason
from velaray.admin.binding import Route, body_of, given
from velaray.admin.entries import entry_answer, read_message_id
from velaray.admin.http import (
    AdminError,
    answer,
    ask_each,
    done,
    find_single,
    find_target,
    number_in_path,
    whole_topic_of,
)
from velaray.admin.stats import message_id
from velaray.broker.partition import messages as m
from velaray.client.admin import topics as operations
from velaray.client.admin.operations import (
    TEXT,
    AnyObject,
    Operation,
    reads,
)
from velaray.client.admin.subscriptions import MessageIdBody
from velaray.client.admin.topics import TOPIC, MessageIdData
from velaray.topology.rpc import RemoteError

WHOLE_RANGE = "0x00000000_0xffffffff"
"""The range of the single bundle that every namespace has."""


async def get_entry(request: web.Request) -> web.Response:
    """The entry with this ledger id and entry id."""
    target = await find_single(request, "reading an entry by its id")
    position = number_in_path(request, "ledger"), number_in_path(request, "entry")
    (found,) = await ask_each(request, target, m.EntryAt(position))
    return entry_answer(found)


async def examine(request: web.Request) -> web.Response:
    """The n-th entry (``messagePosition``, from 1), counted from the earliest or the latest one."""
    target = await find_single(request, "examining messages")
    start = given(request, operations.FROM)
    if start not in ("earliest", "latest"):
        raise AdminError(412, f"initialPosition must be earliest or latest, not {start[:40]!r}")
    number = given(request, operations.POSITION)
    if number < 1:
        raise AdminError(412, f"messagePosition counts from 1, it can't be {number}")
    wanted = m.NthEntry(number, latest=start == "latest")
    (found,) = await ask_each(request, target, wanted)
    if found is None:
        raise RemoteError(Reason.NOT_FOUND, f"{target.name} has no messages")
    return entry_answer(found)


async def id_at_time(request: web.Request) -> web.Response:
    """The id of the first entry published at or after a time (ms), or of the last one."""
    target = await find_single(request, "finding a message by time")
    wanted = m.IdAtTime(number_in_path(request, "timestamp"))
    (found,) = await ask_each(request, target, wanted)
    if found is None:
        (found,) = await ask_each(request, target, m.LastMessageId())
    return answer(message_id(found))


async def backlog_size(request: web.Request) -> web.Response:
    """The approximate number of bytes from the message id of the body on."""
    target = await find_single(request, "the size of a backlog")
    found = read_message_id(body_of(request))
    (size,) = await ask_each(request, target, m.BacklogSize((found.ledger_id, found.entry_id)))
    return answer(size)


async def internal_info(request: web.Request) -> web.Response:
    """The ledgers of a topic, by partition if it has several."""
    target = await find_target(request)
    found = [
        {
            "ledgers": [
                {"ledgerId": each["ledger_id"], "entries": each["entries"]}
                for each in raw["ledgers"]
            ]
        }
        for raw in await ask_each(request, target, m.Stats())
    ]
    if not target.is_many:
        return answer(found[0])
    names = [str(name) for name in target.members()]
    return answer({"partitions": dict(zip(names, found, strict=True))})


async def create_missed_partitions(request: web.Request) -> web.Response:
    """Do nothing: a partitioned topic is always created with all of its partitions."""
    target = await find_target(request)
    if not target.is_many:
        raise AdminError(404, f"{target.name} is not a partitioned topic")
    return done()


async def trim(request: web.Request) -> web.Response:
    """Trim the ledgers that are no longer needed now, without waiting for the next round."""
    await ask_each(request, await find_target(request), m.Upkeep())
    return done()


async def bundle_range(request: web.Request) -> web.Response:
    """The range of the topic's bundle, which is the namespace's only one."""
    whole_topic_of(request)
    return web.Response(text=WHOLE_RANGE)


ID_AT_TIME = reads(f"{TOPIC}/messageid/{{timestamp}}", MessageIdData)
"""Answer the id of the first entry of a time."""

ROUTES: tuple[Route, ...] = (
    Route(operations.READ_ENTRY, get_entry),
    Route(operations.EXAMINE, examine),
    Route(ID_AT_TIME, id_at_time),
    Route(
        Operation("PUT", f"{TOPIC}/backlogSize", body=MessageIdBody, answers={200: int}),
        backlog_size,
    ),
    Route(reads(f"{TOPIC}/internal-info", AnyObject), internal_info),
    Route(Operation("POST", f"{TOPIC}/createMissedPartitions"), create_missed_partitions),
    Route(Operation("POST", f"{TOPIC}/trim"), trim),
    Route(
        Operation(
            "GET",
            "/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}/bundle",
            answers={200: str},
            content=TEXT,
        ),
        bundle_range,
    ),
)
