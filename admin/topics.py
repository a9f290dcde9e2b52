"""Routes of the admin interface for topics: create, delete, grow, inspect, terminate, unload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from velaray.actors.machine import Reason
from velaray.actors.partition.machine import StartAt
from velaray.admin.http import (
    PREFIX,
    AdminError,
    Route,
    Target,
    actor_system_of,
    answer,
    ask_catalog,
    ask_each,
    done,
    find_single,
    find_target,
    flag,
    json_body,
    means_home,
    namespace_of,
    object_body,
    properties,
    topic_of,
    whole_topic_of,
)
from velaray.admin.stats import (
    Shown,
    internal_stats,
    message_id,
    partitioned_stats,
    ranges_text,
    topic_stats,
)
from velaray.admin.tenants import served_topics
from velaray.admin.unsupported import refusal
from velaray.broker.catalog import messages as m
from velaray.broker.coordinator.coordinators import check_not_systems, is_systems
from velaray.broker.garbage_collection.topic_deletion import delete_topic
from velaray.broker.partition.messages import (
    CreateSubscription,
    IndividuallyAcked,
    LastMessageId,
    Stats,
    Subscriptions,
    Terminate,
)
from velaray.events.ids import ActorKey
from velaray.journal.errors import NotStored
from velaray.topology.actor_system import ActorSystem
from velaray.topology.fan_out import each
from velaray.topology.rpc import RemoteError

SHADOW_SOURCE = "PULSAR.SHADOW_SOURCE"
"""The property with which Pulsar's tools create a shadow topic."""

# -- listing -----------------------------------------------------------------------


async def list_topics(request: web.Request) -> web.Response:
    """The names of a namespace's topics; each partition is listed."""
    return answer(await served_topics(request))


async def list_partitioned(request: web.Request) -> web.Response:
    """The names of a namespace's partitioned topics."""
    found = await ask_catalog(request, m.Topics(namespace_of(request)))
    return answer([topic["topic"] for topic in found if topic["partitions"]])


async def get_partitions(request: web.Request) -> web.Response:
    """The number of partitions of a topic (0: plain).

    With ``checkAllowAutoCreation`` a missing topic is created if policy allows.
    """
    name = topic_of(request)
    create = flag(request, "checkAllowAutoCreation") and not is_systems(name)
    asked = m.EnsureTopic if create else m.Topic
    found = await ask_catalog(request, asked(str(name), means_home(request)))
    return answer({"partitions": found["partitions"] if name.partition < 0 else 0})


async def get_properties(request: web.Request) -> web.Response:
    """The topic's properties."""
    return answer((await find_target(request)).properties)


async def put_properties(request: web.Request) -> web.Response:
    """Set the topic's properties of the body; its other properties stay."""
    given = properties(await object_body(request))
    _refuse_shadow(request, given)
    await _change_properties(request, given)
    return done()


async def remove_property(request: web.Request) -> web.Response:
    """Remove the property ``?key=`` of the topic, if it is set."""
    if "key" not in request.query:
        raise AdminError(400, "give the property's name as key")
    await _change_properties(request, {}, request.query["key"])
    return done()


async def _change_properties(request: web.Request, given: dict[str, str], *removed: str) -> None:
    name = check_not_systems(whole_topic_of(request))
    await ask_catalog(request, m.SetTopicProperties(str(name), given, removed))


def _refuse_shadow(request: web.Request, given: Mapping[str, str]) -> None:
    if SHADOW_SOURCE in given:
        raise refusal(request, f"shadow topics (the property {SHADOW_SOURCE})")


# -- creating, growing, deleting ---------------------------------------------------


async def _create(request: web.Request, partitions: int, given: dict[str, str]) -> web.Response:
    name = whole_topic_of(request)
    _refuse_shadow(request, given)
    reply = await ask_catalog(request, m.CreateTopic(str(name), partitions, given))
    if not reply["created"]:
        raise AdminError(409, f"topic {name} exists")
    return done()


async def create_plain(request: web.Request) -> web.Response:
    """Create a topic without partitions; the body may hold its properties."""
    return await _create(request, 0, properties(await object_body(request)))


async def create_partitioned(request: web.Request) -> web.Response:
    """Create a partitioned topic; the body is a number or ``{partitions, properties}``."""
    body = await json_body(request)
    if not isinstance(body, dict):
        return await _create(request, _count(body), {})
    return await _create(
        request, _count(body.get("partitions")), properties(body.get("properties"))
    )


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise AdminError(400, "give the number of partitions as the body")
    if not 1 <= value < 1 << 31:
        raise AdminError(422, f"a partitioned topic has at least one partition, not {value}")
    return value


async def grow(request: web.Request) -> web.Response:
    """Increase the number of partitions of a topic to the number in the body.

    The durable subscriptions of partition 0 start at the beginning of the new partitions, so
    consumers that discover them late miss no messages. After a failure, repeat the call with the
    same number to complete it.
    """
    name = whole_topic_of(request)
    count = _count(await json_body(request))
    before = await find_target(request)
    await ask_catalog(request, m.GrowPartitions(str(name), count))
    numbers = range(before.partitions if count > before.partitions else 1, count)
    new = [ActorKey.of_partition(name.of_partition(n), before.incarnation) for n in numbers]
    actor_system = actor_system_of(request)
    first = ActorKey.of_partition(name.of_partition(0), before.incarnation)
    names = await actor_system.request(first, Subscriptions())

    async def subscribe(key: ActorKey) -> None:
        for each_name in names:
            await actor_system.request(key, CreateSubscription(each_name, StartAt.EARLIEST))

    await each(new, subscribe)
    return done()


async def delete_plain(request: web.Request) -> web.Response:
    """Delete a topic without partitions, or complete an interrupted deletion."""
    return await _delete(request, partitioned=False)


async def delete_partitioned(request: web.Request) -> web.Response:
    """Delete a topic with all its partitions, or complete an interrupted deletion."""
    return await _delete(request, partitioned=True)


async def _delete(request: web.Request, *, partitioned: bool) -> web.Response:
    name = whole_topic_of(request)
    try:
        found = await find_target(request)
    except RemoteError as error:
        if error.kind != Reason.NOT_FOUND:
            raise
    else:
        if found.is_many and not partitioned:
            raise AdminError(409, f"{name} is a partitioned topic: delete its /partitions")
        if partitioned and not found.is_many:
            raise AdminError(404, f"{name} is not a partitioned topic")
    await delete_topic(actor_system_of(request), name, force=flag(request, "force"))
    return done()


async def undelete(request: web.Request) -> web.Response:
    """Restore a deleted topic completely, within the undelete window."""
    await ask_catalog(request, m.UndeleteTopic(str(whole_topic_of(request))))
    return done()


# -- inspecting --------------------------------------------------------------------


async def ledger_sizes(actor_system: ActorSystem, key: ActorKey) -> dict[int, int]:
    """The stored bytes of every ledger of an actor, by id."""
    journal, sizes = key.text(), {}
    for ledger_id in await actor_system.store.list_ledgers(journal):
        try:
            sizes[ledger_id] = await actor_system.store.size(journal, ledger_id)
        except NotStored:
            continue  # it was removed after the listing
    return sizes


async def _raw(request: web.Request, key: ActorKey) -> tuple[dict[str, Any], dict[int, int]]:
    actor_system = actor_system_of(request)
    return await actor_system.request(key, Stats()), await ledger_sizes(actor_system, key)


async def stats(request: web.Request) -> web.Response:
    """Statistics of a plain topic or of one partition."""
    shown = _shown(request)
    target = await find_single(request, "stats (not partitioned-stats)")
    return answer(topic_stats(*await _raw(request, target.keys()[0]), shown))


def _shown(request: web.Request) -> Shown:
    """The query parameters that select the listed clients. Raises `AdminError`."""
    return Shown(not flag(request, "excludePublishers"), not flag(request, "excludeConsumers"))


async def all_stats(request: web.Request) -> web.Response:
    """Statistics of a partitioned topic; ``perPartition`` (the default) adds each partition."""
    shown = _shown(request)
    target = await _partitioned(request)
    found = await each(target.keys(), lambda key: _raw(request, key))
    names = [str(name) for name in target.members()]
    partitions = {name: topic_stats(*raw, shown) for name, raw in zip(names, found, strict=True)}
    whole = partitioned_stats(partitions)
    per_partition = "perPartition" not in request.query or flag(request, "perPartition")
    whole["partitions"] = partitions if per_partition else {}
    return answer(whole)


async def internals(request: web.Request) -> web.Response:
    """Ledgers and cursors of a plain topic or of one partition."""
    target = await find_single(request, "internalStats (not partitioned-internalStats)")
    key = target.keys()[0]
    raw, sizes = await _raw(request, key)
    actor_system = actor_system_of(request)
    last = await actor_system.request(key, LastMessageId())
    found = internal_stats(raw, sizes)
    for name, acked in (await actor_system.request(key, IndividuallyAcked())).items():
        if name in found["cursors"]:
            found["cursors"][name]["individuallyDeletedMessages"] = ranges_text(acked)
    return answer({**found, "lastConfirmedEntry": "{}:{}".format(*last)})


async def all_internals(request: web.Request) -> web.Response:
    """Ledgers and cursors of every partition."""
    target = await _partitioned(request)
    found = await each(target.keys(), lambda key: _raw(request, key))
    names = [str(name) for name in target.members()]
    partitions = {name: internal_stats(*raw) for name, raw in zip(names, found, strict=True)}
    return answer({"metadata": {"partitions": target.partitions}, "partitions": partitions})


async def _partitioned(request: web.Request) -> Target:
    target = await find_target(request)
    if not target.is_many:
        raise AdminError(404, f"{target.name} is not a partitioned topic")
    return target


async def last_message_id(request: web.Request) -> web.Response:
    """The id of the last entry; entry id -1 if the topic is empty."""
    target = await find_single(request, "lastMessageId")
    (found,) = await ask_each(request, target, LastMessageId())
    return answer(message_id(found))


# -- acting ------------------------------------------------------------------------


async def unload(request: web.Request) -> web.Response:
    """Stop the topic's partition actors gracefully; the next use starts them again."""
    target = await find_target(request)
    await each(target.keys(), actor_system_of(request).dismiss)
    return done()


async def terminate(request: web.Request) -> web.Response:
    """Terminate the topic. The answer is the last message id, by partition if there are several."""
    target = await find_target(request)
    found = await ask_each(request, target, Terminate())
    if target.is_many:
        return answer({str(number): message_id(last) for number, last in enumerate(found)})
    return answer(message_id(found[0]))


_TOPIC = f"{PREFIX}/persistent/{{tenant}}/{{namespace}}/{{topic}}"

ROUTES: tuple[Route, ...] = (
    ("GET", f"{PREFIX}/persistent/{{tenant}}/{{namespace}}", list_topics),
    ("GET", f"{PREFIX}/persistent/{{tenant}}/{{namespace}}/partitioned", list_partitioned),
    ("PUT", _TOPIC, create_plain),
    ("DELETE", _TOPIC, delete_plain),
    ("GET", f"{_TOPIC}/partitions", get_partitions),
    ("PUT", f"{_TOPIC}/partitions", create_partitioned),
    ("POST", f"{_TOPIC}/partitions", grow),
    ("DELETE", f"{_TOPIC}/partitions", delete_partitioned),
    ("GET", f"{_TOPIC}/properties", get_properties),
    ("PUT", f"{_TOPIC}/properties", put_properties),
    ("DELETE", f"{_TOPIC}/properties", remove_property),
    ("GET", f"{_TOPIC}/stats", stats),
    ("GET", f"{_TOPIC}/partitioned-stats", all_stats),
    ("GET", f"{_TOPIC}/internalStats", internals),
    ("GET", f"{_TOPIC}/partitioned-internalStats", all_internals),
    ("GET", f"{_TOPIC}/lastMessageId", last_message_id),
    ("PUT", f"{_TOPIC}/unload", unload),
    ("POST", f"{_TOPIC}/undelete", undelete),
    ("POST", f"{_TOPIC}/terminate", terminate),
    ("POST", f"{_TOPIC}/terminate/partitions", terminate),
)
