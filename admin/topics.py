"""Routes of the admin interface for topics: create, delete, grow, inspect, terminate, unload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aiohttp import web

from velaray.actors.machine import Reason
from velaray.actors.partition.machine import StartAt
from velaray.admin.binding import Route, body_of, given
from velaray.admin.http import (
    AdminError,
    Target,
    actor_system_of,
    answer,
    ask_catalog,
    ask_each,
    done,
    find_single,
    find_target,
    means_home,
    namespace_of,
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
from velaray.client.admin import topics as operations
from velaray.client.admin.operations import FORCE, Operation, Parameter, Texts, reads
from velaray.events.ids import ActorKey
from velaray.journal.errors import NotStored
from velaray.journal.manifest import decode_manifest
from velaray.journal.offload.tiered_store import TieredStore
from velaray.topology.actor_system import ActorSystem
from velaray.topology.fan_out import each
from velaray.topology.rpc import RemoteError

SHADOW_SOURCE = "PULSAR.SHADOW_SOURCE"
"""The property with which Pulsar's tools create a shadow topic."""
KEY: Parameter[str | None] = Parameter("key", str, None, "The name of the property.")

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
    create = given(request, operations.MAY_CREATE) and not is_systems(name)
    asked = m.EnsureTopic if create else m.Topic
    found = await ask_catalog(request, asked(str(name), means_home(request)))
    return answer({"partitions": found["partitions"] if name.partition < 0 else 0})


async def get_properties(request: web.Request) -> web.Response:
    """The topic's properties."""
    return answer((await find_target(request)).properties)


async def put_properties(request: web.Request) -> web.Response:
    """Set the topic's properties of the body; its other properties stay."""
    new = body_of(request)
    _refuse_shadow(request, new)
    await _change_properties(request, new)
    return done()


async def remove_property(request: web.Request) -> web.Response:
    """Remove the property ``?key=`` of the topic, if it is set."""
    key = given(request, KEY)
    if key is None:
        raise AdminError(400, "give the property's name as key")
    await _change_properties(request, {}, key)
    return done()


async def _change_properties(request: web.Request, new: dict[str, str], *removed: str) -> None:
    name = check_not_systems(whole_topic_of(request))
    await ask_catalog(request, m.SetTopicProperties(str(name), new, removed))


def _refuse_shadow(request: web.Request, properties: Mapping[str, str]) -> None:
    if SHADOW_SOURCE in properties:
        raise refusal(request, f"shadow topics (the property {SHADOW_SOURCE})")


# -- creating, growing, deleting ---------------------------------------------------


async def _create(
    request: web.Request, partitions: int, properties: dict[str, str]
) -> web.Response:
    name = whole_topic_of(request)
    _refuse_shadow(request, properties)
    reply = await ask_catalog(request, m.CreateTopic(str(name), partitions, properties))
    if not reply["created"]:
        raise AdminError(409, f"topic {name} exists")
    return done()


async def create_plain(request: web.Request) -> web.Response:
    """Create a topic without partitions; the body may hold its properties."""
    return await _create(request, 0, body_of(request))


async def create_partitioned(request: web.Request) -> web.Response:
    """Create a partitioned topic; the body is a number or ``{partitions, properties}``."""
    body = body_of(request)
    if isinstance(body, int):
        return await _create(request, _count(body), {})
    return await _create(request, _count(body["partitions"]), body.get("properties", {}))


def _count(value: int) -> int:
    if not 1 <= value < 1 << 31:
        raise AdminError(422, f"Number of partitions should be more than 0, not {value}")
    return value


async def grow(request: web.Request) -> web.Response:
    """Increase the number of partitions of a topic to the number in the body.

    The durable subscriptions of partition 0 start at the beginning of the new partitions, so
    consumers that discover them late miss no messages. After a failure, repeat the call with the
    same number to complete it.
    """
    name = whole_topic_of(request)
    count = _count(body_of(request))
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
    await delete_topic(actor_system_of(request), name, force=given(request, FORCE))
    return done()


async def undelete(request: web.Request) -> web.Response:
    """Restore a deleted topic completely, within the undelete window."""
    await ask_catalog(request, m.UndeleteTopic(str(whole_topic_of(request))))
    return done()


async def list_deleted(request: web.Request) -> web.Response:
    """The deleted topics of a namespace that can be undeleted."""
    found = await ask_catalog(request, m.RestorableTopics(namespace_of(request)))
    return answer(
        [
            {
                "topic": deleted_topic["topic"],
                "partitions": deleted_topic["partitions"],
                "deletedMs": deleted_topic["deleted_ms"] or None,
                "restorableUntilMs": deleted_topic["until_ms"],
            }
            for deleted_topic in found
        ]
    )


# -- inspecting --------------------------------------------------------------------


async def ledger_sizes(actor_system: ActorSystem, key: ActorKey) -> dict[int, int]:
    """The stored bytes of every ledger of an actor, by id; also of those that are only in the
    archive."""
    journal, sizes = key.text(), await offloaded_sizes(actor_system, key)
    for ledger_id in await actor_system.store.list_ledgers(journal):
        try:
            sizes[ledger_id] = await actor_system.store.size(journal, ledger_id)
        except NotStored:
            continue  # it was removed after the listing
    return sizes


async def offloaded_sizes(actor_system: ActorSystem, key: ActorKey) -> dict[int, int]:
    """The bytes of the ledgers of an actor that are in the archive, by id."""
    store, journal = actor_system.store, key.text()
    found = await store.read_manifest(journal) if isinstance(store, TieredStore) else None
    if found is None:
        return {}
    manifest = decode_manifest(store.location(journal), found.data)
    return {info.ledger_id: info.bytes for info in manifest.ledgers if info.offloaded_ms}


async def _raw(request: web.Request, key: ActorKey) -> tuple[dict[str, Any], dict[int, int]]:
    actor_system = actor_system_of(request)
    return await actor_system.request(key, Stats()), await ledger_sizes(actor_system, key)


async def stats(request: web.Request) -> web.Response:
    """Statistics of a plain topic or of one partition."""
    shown = _shown(request)
    target = await find_single(request, "stats (not partitioned-stats)")
    return answer(topic_stats(*await _raw(request, target.keys()[0]), shown))


def _shown(request: web.Request) -> Shown:
    """The query parameters that select the listed clients."""
    return Shown(
        not given(request, operations.NO_PUBLISHERS), not given(request, operations.NO_CONSUMERS)
    )


async def all_stats(request: web.Request) -> web.Response:
    """Statistics of a partitioned topic; ``perPartition`` (the default) adds each partition."""
    shown = _shown(request)
    target = await _partitioned(request)
    found = await each(target.keys(), lambda key: _raw(request, key))
    names = [str(name) for name in target.members()]
    partitions = {name: topic_stats(*raw, shown) for name, raw in zip(names, found, strict=True)}
    whole = partitioned_stats(partitions)
    whole["partitions"] = partitions if given(request, operations.PER_PARTITION) else {}
    return answer(whole)


async def internals(request: web.Request) -> web.Response:
    """Ledgers and cursors of a plain topic or of one partition."""
    target = await find_single(request, "internalStats (not partitioned-internalStats)")
    key = target.keys()[0]
    found = await _internals(request, key)
    actor_system = actor_system_of(request)
    last = await actor_system.request(key, LastMessageId())
    for name, acked in (await actor_system.request(key, IndividuallyAcked())).items():
        if name in found["cursors"]:
            found["cursors"][name]["individuallyDeletedMessages"] = ranges_text(acked)
    return answer({**found, "lastConfirmedEntry": "{}:{}".format(*last)})


async def _internals(request: web.Request, key: ActorKey) -> dict[str, Any]:
    raw, sizes = await _raw(request, key)
    return internal_stats(raw, sizes, await offloaded_sizes(actor_system_of(request), key))


async def all_internals(request: web.Request) -> web.Response:
    """Ledgers and cursors of every partition."""
    target = await _partitioned(request)
    found = await each(target.keys(), lambda key: _internals(request, key))
    names = [str(name) for name in target.members()]
    partitions = dict(zip(names, found, strict=True))
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


_PROPERTIES = f"{operations.TOPIC}/properties"

ROUTES: tuple[Route, ...] = (
    Route(operations.LIST, list_topics),
    Route(reads(f"{operations.TOPICS}/partitioned", list[str]), list_partitioned),
    Route(operations.CREATE, create_plain),
    Route(operations.DELETE, delete_plain),
    Route(operations.PARTITIONS, get_partitions),
    Route(operations.CREATE_PARTITIONED, create_partitioned),
    Route(operations.GROW, grow),
    Route(operations.DELETE_PARTITIONED, delete_partitioned),
    Route(reads(_PROPERTIES, Texts), get_properties),
    Route(Operation("PUT", _PROPERTIES, body=Texts), put_properties),
    Route(Operation("DELETE", _PROPERTIES, (KEY,)), remove_property),
    Route(operations.STATS, stats),
    Route(operations.PARTITIONED_STATS, all_stats),
    Route(operations.INTERNAL_STATS, internals),
    Route(operations.PARTITIONED_INTERNAL_STATS, all_internals),
    Route(operations.LAST_MESSAGE_ID, last_message_id),
    Route(operations.UNLOAD, unload),
    Route(operations.UNDELETE, undelete),
    Route(operations.DELETED, list_deleted),
    Route(operations.TERMINATE, terminate),
    Route(replace(operations.TERMINATE, path=f"{operations.TERMINATE.path}/partitions"), terminate),
)
