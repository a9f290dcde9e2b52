"""Routes of the admin interface for subscriptions: create, delete, seek, skip, peek.

On a partitioned topic they change every partition. If some partitions fail, the error names those
that are changed and those that aren't.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from aiohttp import web
from typing_extensions import TypedDict

from velaray.actors.machine import Reason
from velaray.actors.partition.machine import StartAt
from velaray.admin.binding import Route, body_of, given
from velaray.admin.entries import entry_answer, read_message_id
from velaray.admin.every_partition import change_every
from velaray.admin.http import (
    AdminError,
    Target,
    actor_system_of,
    answer,
    ask_each,
    done,
    find_single,
    find_target,
    number_in_path,
    partition_of,
)
from velaray.broker.explain import described, history_of
from velaray.broker.explain_log import with_decision
from velaray.broker.partition import messages as m
from velaray.client.admin import subscriptions as operations
from velaray.client.admin.operations import FORCE, Operation, Texts, reads
from velaray.events.ids import (
    INT64_MAX,
    ActorKey,
    InvalidMessageIdError,
    MessageId,
    Position,
    check_local_name,
)
from velaray.topology.fan_out import each
from velaray.topology.messages import Request
from velaray.topology.rpc import RemoteError
from velaray.wire.replication import REPLICATED_SUBSCRIPTION, REPLICATOR_PREFIX, is_replicated

MOST_SECONDS = INT64_MAX // 1000
"""The largest number of seconds whose milliseconds fit in 64 bits."""


def _name(request: web.Request) -> str:
    return check_local_name("subscription", request.match_info["subscription"])


def _position(target: Target, found: MessageId) -> StartAt | tuple[int, int]:
    """The position of ``found`` as partitions take it.

    Raises `AdminError` if the id isn't valid for every partition of ``target``.
    """
    if found == MessageId.earliest:
        return StartAt.EARLIEST
    if found == MessageId.latest:
        return StartAt.LATEST
    if target.is_many:
        raise AdminError(
            405,
            "a message id belongs to one partition: name it, "
            f"such as {target.name.of_partition(max(found.partition, 0))}",
        )
    return found.ledger_id, found.entry_id


async def _subscriptions(request: web.Request, target: Target) -> list[list[str]]:
    return await ask_each(request, target, m.Subscriptions())


async def _change_holders(
    request: web.Request, holders: list[Target], change: Request[Any]
) -> None:
    """Send a request to each of these partitions. Raises as `change_every` does."""
    actor_system = actor_system_of(request)
    work = {
        topic: partial(actor_system.request, key, change)
        for topic, key in _keys_of(holders).items()
    }
    await change_every(work)


def _keys_of(holders: list[Target]) -> dict[str, ActorKey]:
    """The actors of these partitions, by partition name."""
    return {str(holder.name): holder.keys()[0] for holder in holders}


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
    """The names of the durable subscriptions of a topic and its partitions."""
    found = await _subscriptions(request, await find_target(request))
    every = {name for names in found for name in names}
    return answer(sorted(name for name in every if not name.startswith(REPLICATOR_PREFIX)))


async def create(request: web.Request) -> web.Response:
    """Create a durable subscription at the message id of the body (absent: at the end).

    409 if every partition has it. The body may hold ``properties``. ``replicated`` replicates the
    subscription's state to other clusters.
    """
    name, body = _name(request), body_of(request)
    target = await find_target(request)
    properties = body.pop("properties", {})
    if given(request, operations.REPLICATED):
        properties = {**properties, REPLICATED_SUBSCRIPTION: "true"}
    start = read_message_id(body) if body else MessageId.latest
    if all(name in names for names in await _subscriptions(request, target)):
        raise AdminError(409, f"{target.name} has a subscription {name!r}")
    await ask_each(
        request, target, m.CreateSubscription(name, _position(target, start), properties)
    )
    return done()


async def set_replicated(request: web.Request) -> web.Response:
    """Turn replication of a subscription's state on or off: a JSON boolean."""
    change = m.SetReplicated(_name(request), body_of(request))
    await _change_holders(request, await _holders(request, await find_target(request)), change)
    return done()


async def replicated(request: web.Request) -> web.Response:
    """Whether a subscription's state is replicated, by partition."""
    found = {}
    for holder in await _holders(request, await find_target(request)):
        (own,) = await ask_each(request, holder, m.SubscriptionProperties())
        found[str(holder.name)] = is_replicated(own.get(_name(request), {}))
    return answer(found)


async def delete(request: web.Request) -> web.Response:
    """Delete a subscription; 412 while consumers are connected, unless ``force``."""
    name, force = _name(request), given(request, FORCE)
    holders = await _holders(request, await find_target(request))
    if not force:
        await _refuse_if_consumed(request, holders)

    async def delete_from(holder: Target) -> None:
        try:
            await ask_each(request, holder, m.DeleteSubscription(name, force))
        except RemoteError as error:
            # The subscription existed above. NOT_FOUND means that an earlier attempt deleted it
            # before the connection broke.
            if error.kind != Reason.NOT_FOUND:
                raise

    await change_every({str(holder.name): partial(delete_from, holder) for holder in holders})
    return done()


async def _refuse_if_consumed(request: web.Request, holders: list[Target]) -> None:
    """Refuse before the first partition deletes the subscription if any partition has consumers."""
    for holder in holders:
        (stats,) = await ask_each(request, holder, m.Stats())
        if consumers := stats["subscriptions"][_name(request)]["consumers"]:
            raise AdminError(
                412,
                f"subscription {_name(request)!r} of {holder.name} has {len(consumers)} connected "
                "consumers: close them, or delete with force",
            )


async def describe(request: web.Request) -> web.Response:
    """Cursor, consumers and the reasons for held-back entries, by partition."""
    target, name = await find_target(request), _name(request)
    found = []
    for member in target.members():
        one = Target(member, target.partitions, target.incarnation, target.properties)
        try:
            found += await ask_each(request, one, m.DescribeSubscription(name))
        except RemoteError as error:
            if error.kind != Reason.NOT_FOUND:
                raise
    if not found:
        raise RemoteError(Reason.NOT_FOUND, f"{target.name} has no subscription {name!r}")
    return answer({each["topic"]: each for each in found})


async def reset_to_time(request: web.Request) -> web.Response:
    """Move a subscription to the first message published at or after a time (ms since 1970)."""
    seek = m.Seek(_name(request), time_ms=number_in_path(request, "timestamp"))
    await _change_holders(request, await _holders(request, await find_target(request)), seek)
    return done()


async def reset_to_id(request: web.Request) -> web.Response:
    """Move a subscription: the message id of the body becomes the next message.

    With ``excluded`` (or ``isExcluded``) the following message becomes the next one. The ids of the
    earliest and the latest message are valid for all partitions.
    """
    target, body = await find_target(request), body_of(request)
    excluded = _is_excluded(body)
    found = read_message_id(body)
    position = _position(target, found)
    if isinstance(position, StartAt):
        position = found.ledger_id, found.entry_id
    elif excluded:
        position = found.ledger_id, found.entry_id + 1
    seek = m.Seek(_name(request), position)
    await _change_holders(request, await _holders(request, target), seek)
    return done()


def _is_excluded(body: dict[str, Any]) -> bool:
    """The flag ``excluded`` (Pulsar's tools) or ``isExcluded`` (Pulsar's documentation)."""
    return bool(body.get("excluded") or body.get("isExcluded"))


async def skip(request: web.Request) -> web.Response:
    """Acknowledge the next ``count`` entries of a subscription on every partition."""
    name, count = _name(request), number_in_path(request, "count")
    keys, actor_system = (
        _keys_of(await _holders(request, await find_target(request))),
        actor_system_of(request),
    )
    # Read the positions of all partitions before the first one skips. If one of them doesn't
    # answer, none skips. A repeated call skips nothing more.
    wanted = m.FindUnacked(name, count + 1)
    offsets = await each(list(keys.values()), lambda key: actor_system.request(key, wanted))
    work = {
        topic: partial(actor_system.request, key, m.SkipTo(name, offset))
        for (topic, key), offset in zip(keys.items(), offsets, strict=True)
    }
    await change_every(work)
    return done()


async def skip_all(request: web.Request) -> web.Response:
    """Acknowledge a subscription's whole backlog."""
    holders = await _holders(request, await find_target(request))
    await _change_holders(request, holders, m.SkipTo(_name(request)))
    return done()


async def expire(request: web.Request) -> web.Response:
    """Expire messages that were published at least this many seconds ago."""
    age_ms = number_in_path(request, "seconds", MOST_SECONDS) * 1000
    holders = await _holders(request, await find_target(request))
    await _change_holders(request, holders, m.Expire(_name(request), age_ms))
    return done()


async def expire_to_id(request: web.Request) -> web.Response:
    """Acknowledge everything up to the message id of the body, or (``excluded``) before it."""
    target = await find_single(request, "expiring up to a message id")
    body = body_of(request)
    found = read_message_id(body)
    position = found.ledger_id, found.entry_id + (not _is_excluded(body))
    await ask_each(request, target, m.SkipTo(_name(request), position=position))
    return done()


async def analyze_backlog(request: web.Request) -> web.Response:
    """Count a subscription's un-acknowledged entries and messages by reading them."""
    target = await find_single(request, "analyzing a backlog")
    body = body_of(request)
    position = None
    if body:
        found = read_message_id(body)
        position = found.ledger_id, found.entry_id
    (read,) = await ask_each(request, target, m.AnalyzeBacklog(_name(request), position))
    return answer(
        {
            "entries": read["entries"],
            "messages": read["messages"],
            "filterAcceptedEntries": read["entries"],
            "filterAcceptedMessages": read["messages"],
            "filterRejectedEntries": 0,
            "filterRejectedMessages": 0,
            "filterRescheduledEntries": 0,
            "filterRescheduledMessages": 0,
            "aborted": not read["complete"],
        }
    )


async def get_properties(request: web.Request) -> web.Response:
    """The properties of a subscription; for several partitions, those of the first that has it."""
    holder = (await _holders(request, await find_target(request)))[0]
    (found,) = await ask_each(request, holder, m.SubscriptionProperties())
    own = found.get(_name(request), {})
    return answer({key: value for key, value in own.items() if key != REPLICATED_SUBSCRIPTION})


async def set_properties(request: web.Request) -> web.Response:
    """Replace the properties of a subscription."""
    properties = body_of(request)
    if REPLICATED_SUBSCRIPTION in properties:
        raise AdminError(422, f"{REPLICATED_SUBSCRIPTION} is set by replicatedSubscriptionStatus")
    for holder in await _holders(request, await find_target(request)):
        await ask_each(request, holder, m.SetProperties(_name(request), properties))
    return done()


async def expire_all(request: web.Request) -> web.Response:
    """Expire messages of this age for every durable subscription."""
    age_ms = number_in_path(request, "seconds", MOST_SECONDS) * 1000
    target = await find_target(request)
    found, actor_system = await _subscriptions(request, target), actor_system_of(request)

    async def expire_in(key: ActorKey, names: list[str]) -> None:
        for name in names:
            await actor_system.request(key, m.Expire(name, age_ms))

    work = {
        str(topic): partial(expire_in, key, names)
        for topic, key, names in zip(target.members(), target.keys(), found, strict=True)
    }
    await change_every(work)
    return done()


def _point_in_time(request: web.Request) -> dict[str, int]:
    """The query parameters ``event`` or ``time``. Raises `AdminError`."""
    event, since = given(request, operations.EVENT), given(request, operations.SINCE)
    if event is not None and since is not None:
        raise AdminError(400, "give event or time, not both")
    if event is not None:
        return {"sequence": event}
    return {} if since is None else {"at_ms": since}


async def _plans(request: web.Request) -> dict[str, dict[str, Any]]:
    """The changes that an undo would make, by partition; unchanged partitions are left out.

    Raises `RemoteError` (NOT_FOUND) if no partition has anything to undo, the first refusal of a
    partition, and `AdminError` for an event that doesn't name its partition.
    """
    target, actor_system = await find_target(request), actor_system_of(request)
    point_in_time = _point_in_time(request)
    if target.is_many and "sequence" in point_in_time:
        raise AdminError(
            400,
            "an event's number belongs to the journal of one partition: name it, "
            f"such as {target.name.of_partition(0)}, or give a time",
        )
    keys = _keys_of(await _holders(request, target))
    wanted = m.PlanUndo(_name(request), **point_in_time)
    plans = await each(list(keys.values()), lambda key: actor_system.request(key, wanted))
    moved = {topic: plan for topic, plan in zip(keys, plans, strict=True) if plan is not None}
    if not moved:
        since = "since then" if point_in_time else "to undo"
        text = f"there was no seek, skip or requested expiry {since}"
        raise RemoteError(Reason.NOT_FOUND, f"{target.name}: {text}")
    return moved


async def preview_undo(request: web.Request) -> web.Response:
    """The changes that an undo would make, by partition.

    By default the cursor returns to its state before the last seek, skip or expiry on request.
    ``event`` returns to the state after that event of the subscription's journal, ``time`` to that
    time. Unchanged partitions are left out; 404 if no partition has anything to undo.
    """
    return answer(await _plans(request))


async def undo(request: web.Request) -> web.Response:
    """Apply the changes that the same GET request lists; consumers are closed and reconnect.

    Nothing is changed if a partition refuses or doesn't answer the request for its plan.
    """
    name, actor_system = _name(request), actor_system_of(request)
    keys = _keys_of(await _holders(request, await find_target(request)))
    work = {}
    for topic, plan in (await _plans(request)).items():
        # The event number makes repeated calls idempotent.
        work[topic] = partial(actor_system.request, keys[topic], m.Undo(name, plan["after_event"]))
    return answer(await change_every(work))


async def explain(request: web.Request) -> web.Response:
    """The history and current state of a message of a subscription.

    The message is ``ledger:entry``, with ``:partition`` for a partitioned topic. ``-1:-1`` is the
    first message, and ``9223372036854775807:9223372036854775807`` the last one.
    """
    target, name = await find_target(request), _name(request)
    try:
        found = MessageId.parse(request.match_info["message"])
    except InvalidMessageIdError as error:
        raise AdminError(400, str(error)) from error
    target = partition_of(target, found)
    actor_system, (partition,) = actor_system_of(request), target.keys()
    now = await actor_system.request(partition, m.Whereabouts(name, found.position))
    position = Position(*now.pop("position"))
    (ref,) = await ask_each(request, target, m.Subscription(name))
    key = partition.of_subscription(name, ref["incarnation"])
    now = await with_decision(actor_system, now)
    cluster = name.removeprefix(REPLICATOR_PREFIX) if name.startswith(REPLICATOR_PREFIX) else ""
    history = await history_of(actor_system.store, key, position)
    return answer(described(history, now, cluster))


async def peek(request: web.Request) -> web.Response:
    """A subscription's n-th (from 1) un-acknowledged entry: its payload, uncompressed.

    Headers hold the metadata, as in Pulsar. A batch is answered as a batch.
    """
    target = await find_single(request, "peeking")
    number = number_in_path(request, "position")
    if number < 1:
        raise AdminError(400, "positions count from 1")
    (found,) = await ask_each(request, target, m.Peek(_name(request), number))
    if found is None:
        raise RemoteError(Reason.NOT_FOUND, f"there is no un-acknowledged entry {number}")
    return entry_answer(found)


class Backlog(TypedDict):
    """The unacknowledged entries and messages of a subscription, in Pulsar's form."""

    entries: int
    messages: int
    filterAcceptedEntries: int
    filterAcceptedMessages: int
    filterRejectedEntries: int
    filterRejectedMessages: int
    filterRescheduledEntries: int
    filterRescheduledMessages: int
    aborted: bool


_ONE = operations.SUBSCRIPTION
_PROPERTIES = f"{_ONE}/properties"
_REPLICATED = f"{_ONE}/replicatedSubscriptionStatus"
_ANALYZE = Operation(
    "POST", f"{_ONE}/analyzeBacklog", body=operations.MessageIdBody, answers={200: Backlog}
)

ROUTES: tuple[Route, ...] = (
    Route(operations.LIST, list_subscriptions),
    Route(operations.CREATE, create),
    Route(operations.DELETE, delete),
    Route(operations.DESCRIBE, describe),
    Route(operations.EXPLAIN, explain),
    Route(operations.PREVIEW_UNDO, preview_undo),
    Route(operations.UNDO, undo),
    Route(operations.SEEK_ID, reset_to_id),
    Route(operations.SEEK_TIME, reset_to_time),
    Route(operations.SKIP, skip),
    Route(operations.SKIP_ALL, skip_all),
    Route(operations.EXPIRE, expire),
    Route(Operation("POST", f"{_ONE}/expireMessages", body=operations.Cursor), expire_to_id),
    Route(_ANALYZE, analyze_backlog),
    Route(reads(_PROPERTIES, Texts), get_properties),
    Route(Operation("PUT", _PROPERTIES, body=Texts), set_properties),
    Route(operations.EXPIRE_ALL, expire_all),
    Route(operations.PEEK, peek),
    Route(reads(_REPLICATED, dict[str, bool]), replicated),
    Route(Operation("POST", _REPLICATED, body=bool), set_replicated),
)
