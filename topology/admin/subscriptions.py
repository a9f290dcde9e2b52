"""Routes of the admin interface for subscriptions: create, delete, seek, skip, peek.

On a partitioned topic they act on every partition. What fails half-way can be repeated.
"""

from __future__ import annotations

import json
import string
from typing import Any
from urllib.parse import quote

from aiohttp import web

from velaray.actors.machine import Reason
from velaray.events.ids import (
    INT64_MAX,
    InvalidMessageIdError,
    MessageId,
    Position,
    check_local_name,
)
from velaray.topology.admin.http import (
    PREFIX,
    AdminError,
    Route,
    Target,
    answer,
    ask_each,
    done,
    fabric_of,
    find_single,
    find_target,
    flag,
    json_body,
    number_in_path,
    object_body,
    properties,
)
from velaray.topology.links import RemoteError
from velaray.topology.why import described, history_of
from velaray.topology.why_log import with_decision
from velaray.wire.compression import decompress
from velaray.wire.errors import CompressionError
from velaray.wire.pulsar_pb2 import MessageMetadata
from velaray.wire.replication import REPLICATED_SUBSCRIPTION, REPLICATOR_PREFIX, is_replicated


def _name(request: web.Request) -> str:
    return check_local_name("subscription", request.match_info["subscription"])


def _number(body: dict[str, Any], field: str, default: int | None = None) -> int:
    value = body.get(field, default)
    if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value <= INT64_MAX:
        raise AdminError(400, f"{field} must be a whole number, at least -1")
    return value


def _message_id(body: dict[str, Any]) -> MessageId:
    return MessageId(
        _number(body, "ledgerId"), _number(body, "entryId"), _number(body, "partitionIndex", -1)
    )


def _position(target: Target, found: MessageId) -> str | list[int]:
    """Where ``found`` is, as partitions understand it. Raises `AdminError` if it says nothing
    about all that is meant."""
    if found == MessageId.earliest:
        return "earliest"
    if found == MessageId.latest:
        return "latest"
    if target.is_many:
        raise AdminError(
            405,
            "a message id belongs to one partition: name it, "
            f"such as {target.name.of_partition(max(found.partition, 0))}",
        )
    return [found.ledger_id, found.entry_id]


async def _subscriptions(request: web.Request, target: Target) -> list[list[str]]:
    found: list[list[str]] = await ask_each(request, target, "subscriptions")
    return found


async def _holders(request: web.Request, target: Target) -> list[Target]:
    """The partitions of ``target`` that have the subscription of the path.

    Raises `RemoteError` (NOT_FOUND) if none has it.
    """
    name = _name(request)
    found = await _subscriptions(request, target)
    members = target.members()
    holders = [
        Target(member, target.partitions, target.incarnation, target.properties)
        for member, names in zip(members, found, strict=True)
        if name in names
    ]
    if not holders:
        raise RemoteError(Reason.NOT_FOUND, f"{target.name} has no subscription {name!r}")
    return holders


# -- routes ------------------------------------------------------------------------


async def list_subscriptions(request: web.Request) -> web.Response:
    """The names of the durable subscriptions of a topic, those of all partitions."""
    found = await _subscriptions(request, await find_target(request))
    every = {name for names in found for name in names}
    return answer(sorted(name for name in every if not name.startswith(REPLICATOR_PREFIX)))


async def create(request: web.Request) -> web.Response:
    """Create a durable subscription at the message id of the body (absent: at the end).

    409 if every partition has it. The body may hold ``properties``. With ``replicated`` what it has
    goes to other clusters.
    """
    name, body = _name(request), await object_body(request)
    target = await find_target(request)
    given = properties(body.pop("properties", None))
    if flag(request, "replicated"):
        given = {**given, REPLICATED_SUBSCRIPTION: "true"}
    start = _message_id(body) if body else MessageId.latest
    if all(name in names for names in await _subscriptions(request, target)):
        raise AdminError(409, f"{target.name} has a subscription {name!r}")
    arguments = {"name": name, "position": _position(target, start), "properties": given}
    await ask_each(request, target, "create_subscription", arguments)
    return done()


async def set_replicated(request: web.Request) -> web.Response:
    """Whether what a subscription has is to go to other clusters: true or false, as JSON."""
    name, replicated = _name(request), await json_body(request)
    if not isinstance(replicated, bool):
        raise AdminError(400, "say true or false")
    for holder in await _holders(request, await find_target(request)):
        arguments = {"name": name, "replicated": replicated}
        await ask_each(request, holder, "set_replicated", arguments)
    return done()


async def replicated(request: web.Request) -> web.Response:
    """Whether what a subscription has goes to other clusters, by partition."""
    found = {}
    for holder in await _holders(request, await find_target(request)):
        (given,) = await ask_each(request, holder, "subscription_properties")
        found[str(holder.name)] = is_replicated(given.get(_name(request), {}))
    return answer(found)


async def delete(request: web.Request) -> web.Response:
    """Delete a subscription; 412 while consumers are connected, unless ``force``."""
    name, force = _name(request), flag(request, "force")
    holders = await _holders(request, await find_target(request))
    if not force:
        await _refuse_if_consumed(request, holders)
    for holder in holders:
        try:
            await ask_each(request, holder, "delete_subscription", {"name": name, "force": force})
        except RemoteError as error:
            # It was there: a call that was repeated, since its link broke, finds it deleted.
            if error.kind != Reason.NOT_FOUND:
                raise
    return done()


async def _refuse_if_consumed(request: web.Request, holders: list[Target]) -> None:
    """So that not some partitions lose the subscription before another one refuses."""
    for holder in holders:
        (stats,) = await ask_each(request, holder, "stats")
        if consumers := stats["subscriptions"][_name(request)]["consumers"]:
            raise AdminError(
                412,
                f"subscription {_name(request)!r} of {holder.name} has {len(consumers)} connected "
                "consumers: close them, or delete with force",
            )


async def describe(request: web.Request) -> web.Response:
    """Cursor, consumers and what holds entries back, by partition."""
    target, name = await find_target(request), _name(request)
    found = []
    for member in target.members():
        one = Target(member, target.partitions, target.incarnation, target.properties)
        try:
            found += await ask_each(request, one, "describe_subscription", {"name": name})
        except RemoteError as error:
            if error.kind != Reason.NOT_FOUND:
                raise
    if not found:
        raise RemoteError(Reason.NOT_FOUND, f"{target.name} has no subscription {name!r}")
    return answer({each["topic"]: each for each in found})


async def reset_to_time(request: web.Request) -> web.Response:
    """Move a subscription to the first message published at or after a time (ms since 1970)."""
    arguments = {"name": _name(request), "time_ms": number_in_path(request, "timestamp")}
    for holder in await _holders(request, await find_target(request)):
        await ask_each(request, holder, "seek", arguments)
    return done()


async def reset_to_id(request: web.Request) -> web.Response:
    """Move a subscription to the message id of the body, which comes next.

    With ``isExcluded`` the one after it comes next. The ids of the earliest and the latest
    message are good for all partitions.
    """
    target, body = await find_target(request), await object_body(request)
    excluded = body.get("isExcluded", False)
    if not isinstance(excluded, bool):
        raise AdminError(400, "isExcluded must be true or false")
    found = _message_id(body)
    position = _position(target, found)
    if isinstance(position, str):
        position = [found.ledger_id, found.entry_id]
    elif excluded:
        position = [found.ledger_id, found.entry_id + 1]
    for holder in await _holders(request, target):
        await ask_each(request, holder, "seek", {"name": _name(request), "position": position})
    return done()


async def skip(request: web.Request) -> web.Response:
    """Acknowledge a subscription's next entries, this many on every partition."""
    name, count = _name(request), number_in_path(request, "count")
    for holder in await _holders(request, await find_target(request)):
        # Asked first and done then, so that doing it twice skips nothing more.
        wanted = {"name": name, "number": count + 1}
        (offset,) = await ask_each(request, holder, "find_unacked", wanted)
        target = {"name": name} if offset is None else {"name": name, "offset": offset}
        await ask_each(request, holder, "skip_to", target)
    return done()


async def skip_all(request: web.Request) -> web.Response:
    """Acknowledge all of a subscription's backlog."""
    for holder in await _holders(request, await find_target(request)):
        await ask_each(request, holder, "skip_to", {"name": _name(request)})
    return done()


async def expire(request: web.Request) -> web.Response:
    """Have messages published so many seconds ago, or longer, expire now."""
    age_ms = number_in_path(request, "seconds") * 1000
    for holder in await _holders(request, await find_target(request)):
        await ask_each(request, holder, "expire", {"name": _name(request), "age_ms": age_ms})
    return done()


async def expire_all(request: web.Request) -> web.Response:
    """As `expire`, of every durable subscription."""
    age_ms = number_in_path(request, "seconds") * 1000
    target = await find_target(request)
    fabric = fabric_of(request)
    for key, names in zip(target.keys(), await _subscriptions(request, target), strict=True):
        for name in names:
            await fabric.call(key, "expire", {"name": name, "age_ms": age_ms})
    return done()


def _moment(request: web.Request) -> dict[str, int]:
    """The query parameters ``event`` or ``time``. Raises `AdminError`."""
    found = {}
    for name, field in (("event", "sequence"), ("time", "at_ms")):
        text = request.query.get(name)
        if text is not None:
            if not (text.isascii() and text.isdigit() and int(text) <= INT64_MAX):
                raise AdminError(400, f"{name} must be a whole number, not {text[:40]!r}")
            found[field] = int(text)
    if len(found) == 2:
        raise AdminError(400, "give event or time, not both")
    return found


async def preview_undo(request: web.Request) -> web.Response:
    """What undoing would change, by partition: back to before the last seek, skip or expiry on
    request, to after ``event`` of the subscription's journal, or to ``time``."""
    arguments = {"name": _name(request), "preview": True, **_moment(request)}
    found = {}
    for holder in await _holders(request, await find_target(request)):
        (one,) = await ask_each(request, holder, "undo", arguments)
        found[one["topic"]] = one
    return answer(found)


async def undo(request: web.Request) -> web.Response:
    """Do what the same request with GET tells; consumers are closed and come again."""
    name, found = _name(request), {}
    for holder in await _holders(request, await find_target(request)):
        preview = {"name": name, "preview": True, **_moment(request)}
        (plan,) = await ask_each(request, holder, "undo", preview)
        # The same however often the call is repeated.
        arguments = {"name": name, "sequence": plan["after_event"]}
        (one,) = await ask_each(request, holder, "undo", arguments)
        found[one["topic"]] = one
    return answer(found)


async def why(request: web.Request) -> web.Response:
    """What happened to a message, ``ledger:entry`` (of a partitioned topic with ``:partition``),
    and where it is now."""
    target, name = await find_target(request), _name(request)
    try:
        found = MessageId.parse(request.match_info["message"])
    except InvalidMessageIdError as error:
        raise AdminError(400, str(error)) from error
    if target.is_many and 0 <= found.partition < target.partitions:
        member = target.name.of_partition(found.partition)
        target = Target(member, target.partitions, target.incarnation, target.properties)
    if target.is_many:
        raise AdminError(400, f"say which partition of {target.name}: ledger:entry:partition")
    position = Position(found.ledger_id, found.entry_id)
    fabric, (partition,) = fabric_of(request), target.keys()
    now = await fabric.call(partition, "whereabouts", {"name": name, "position": list(position)})
    (ref,) = await ask_each(request, target, "subscription", {"name": name})
    key = partition.of_subscription(name, ref["incarnation"])
    now = await with_decision(fabric, now)
    return answer(described(await history_of(fabric.store, key, position), now))


async def peek(request: web.Request) -> web.Response:
    """A subscription's n-th (from 1) un-acknowledged entry: its payload, uncompressed.

    Headers tell the rest, as Pulsar's do; a batch comes as a batch.
    """
    target = await find_single(request, "peeking")
    number = number_in_path(request, "position")
    if number < 1:
        raise AdminError(400, "positions count from 1")
    arguments = {"name": _name(request), "number": number}
    found = await fabric_of(request).call(target.keys()[0], "peek", arguments)
    if found is None:
        raise RemoteError(Reason.NOT_FOUND, f"there is no un-acknowledged entry {number}")
    metadata = MessageMetadata.FromString(found["metadata"])
    return web.Response(
        body=_readable(metadata, found["payload"]),
        headers=_peek_headers(found["id"], metadata),
        content_type="application/octet-stream",
    )


def _readable(metadata: MessageMetadata, payload: bytes) -> bytes:
    if metadata.encryption_keys:
        return payload  # only those who hold the key can say what's inside
    try:
        return bytes(decompress(metadata.compression, payload, metadata.uncompressed_size))
    except CompressionError as error:
        raise AdminError(422, f"the entry can't be shown: {error}") from error


def _peek_headers(found: list[int], metadata: MessageMetadata) -> dict[str, str]:
    headers = {
        "X-Pulsar-Message-ID": f"{found[0]}:{found[1]}",
        "X-Pulsar-publish-time": str(metadata.publish_time),
        "X-Pulsar-producer-name": _header_text(metadata.producer_name),
        "X-Pulsar-sequence-id": str(metadata.sequence_id),
    }
    if metadata.HasField("event_time"):
        headers["X-Pulsar-event-time"] = str(metadata.event_time)
    if metadata.HasField("num_messages_in_batch"):
        headers["X-Pulsar-num-batch-message"] = str(metadata.num_messages_in_batch)
    if metadata.HasField("partition_key"):
        headers["X-Pulsar-partition-key"] = _header_text(metadata.partition_key)
    if metadata.properties:
        named = {item.key: item.value for item in metadata.properties}
        headers["X-Pulsar-PROPERTY"] = json.dumps(named)
    if metadata.encryption_keys:
        headers["X-Pulsar-Is-Encrypted"] = "true"
    return headers


def _header_text(text: str) -> str:
    """``text`` with what a header can't carry percent-encoded."""
    return quote(text, safe=string.punctuation + " ")


_TOPIC = f"{PREFIX}/persistent/{{tenant}}/{{namespace}}/{{topic}}"
_ONE = f"{_TOPIC}/subscription/{{subscription}}"

ROUTES: tuple[Route, ...] = (
    ("GET", f"{_TOPIC}/subscriptions", list_subscriptions),
    ("PUT", _ONE, create),
    ("DELETE", _ONE, delete),
    ("GET", f"{_ONE}/describe", describe),
    ("GET", f"{_ONE}/why/{{message}}", why),
    ("GET", f"{_ONE}/undo", preview_undo),
    ("POST", f"{_ONE}/undo", undo),
    ("POST", f"{_ONE}/resetcursor", reset_to_id),
    ("POST", f"{_ONE}/resetcursor/{{timestamp}}", reset_to_time),
    ("POST", f"{_ONE}/skip/{{count}}", skip),
    ("POST", f"{_ONE}/skip_all", skip_all),
    ("POST", f"{_ONE}/expireMessages/{{seconds}}", expire),
    ("POST", f"{_TOPIC}/all_subscription/expireMessages/{{seconds}}", expire_all),
    ("GET", f"{_ONE}/position/{{position}}", peek),
    ("GET", f"{_ONE}/replicatedSubscriptionStatus", replicated),
    ("POST", f"{_ONE}/replicatedSubscriptionStatus", set_replicated),
)
