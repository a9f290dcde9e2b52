"""Routes of the admin interface for schemas of topics, including past versions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aiohttp import web
from typing_extensions import TypedDict

from velaray.actors.machine import Reason
from velaray.admin.binding import Route, body_of, given
from velaray.admin.http import (
    AdminError,
    actor_system_of,
    answer,
    ask_catalog,
    means_home,
    namespace_of,
    number_in_path,
    topic_of,
)
from velaray.broker.catalog.messages import EnsureTopic, Policies, Topic
from velaray.broker.coordinator.coordinators import check_not_systems
from velaray.broker.history import PointInTime
from velaray.broker.schema_registry import messages as m
from velaray.broker.schema_registry.schema_calls import (
    AUTO_UPDATE,
    LEGACY_JSON,
    POLICIES,
    STRATEGY,
    find_schema,
    has_registry,
    info_of,
    no_schema,
    schema_policies,
)
from velaray.broker.schema_registry.schema_history import versions_at
from velaray.client.admin import schemas as operations
from velaray.client.admin.operations import FORCE, Operation, reads
from velaray.events.ids import ActorKey
from velaray.schemas import SchemaInfo, SchemaType
from velaray.schemas.compatibility import Strategy
from velaray.schemas.json_form import data_text, info_from_text
from velaray.schemas.validation import validate
from velaray.topology.rpc import RemoteError

# -- schemas as JSON ---------------------------------------------------------------


def _proposed(request: web.Request) -> SchemaInfo:
    """The schema in a request's body. Raises `InvalidSchemaError`."""
    body = body_of(request)
    return info_from_text(body["type"], body.get("schema", ""), body.get("properties", {}))


def described(found: dict[str, Any]) -> dict[str, Any]:
    """A version in Pulsar's JSON; a deletion has no schema."""
    told = {
        "version": found["version"],
        "type": found.get("type", str(SchemaType.NONE)),
        "timestamp": found["at_ms"],
        "data": "",
        "properties": found.get("properties", {}),
        "deleted": found["deleted"],
        "role": found["role"],
        "strategy": found["strategy"],
        "predecessor": found["predecessor"],
    }
    return told if found["deleted"] else {**told, "data": data_text(info_of(found))}


# -- the topic's registry ----------------------------------------------------------


async def _registry(request: web.Request) -> ActorKey:
    """The schema registry of the topic of the path; a partition has its topic's registry.

    Raises `RemoteError` with NOT_FOUND if the topic doesn't exist, with ELSEWHERE if the tenant's
    home is another cluster, which keeps its schemas.
    """
    topic = check_not_systems(topic_of(request)).topic
    at_home = means_home(request)
    found = await ask_catalog(request, Topic(str(topic), at_home))
    return ActorKey.of_schema_registry(topic, found["incarnation"])


async def _policies(request: web.Request, key: ActorKey) -> dict[str, Any]:
    found = await ask_catalog(request, Policies(str(key.topic_name), effective=list(POLICIES)))
    return dict(found)


def _point_in_time(request: web.Request) -> PointInTime | None:
    """``asOf`` (a time in milliseconds) or ``sequence`` (the number of an event)."""
    at_ms, sequence = given(request, operations.AS_OF), given(request, operations.SEQUENCE)
    if at_ms is not None and sequence is not None:
        raise AdminError(400, "give asOf (milliseconds since 1970) or sequence, not both")
    if sequence is not None:
        return PointInTime(sequence=sequence)
    return None if at_ms is None else PointInTime(at_ms=at_ms)


async def _all(request: web.Request, key: ActorKey, *, gone: bool) -> list[dict[str, Any]]:
    """Every version, now or as of a point in time; ``gone`` includes deleted ones and deletions."""
    actor_system, point_in_time = actor_system_of(request), _point_in_time(request)
    if not await has_registry(actor_system, key):
        return []
    if point_in_time is not None:
        return await versions_at(actor_system.store, key, point_in_time, gone=gone)
    return await actor_system.request(key, m.Schemas(gone))


# -- reading -----------------------------------------------------------------------


async def read_latest(request: web.Request) -> web.Response:
    """The latest version that isn't deleted."""
    key = await _registry(request)
    if _point_in_time(request) is None:
        return answer(described(await find_schema(actor_system_of(request), key, None)))
    found = await _all(request, key, gone=False)
    if not found:
        raise no_schema(key)
    return answer(described(found[-1]))


async def read_one(request: web.Request) -> web.Response:
    """One version, deleted or not: stored messages may refer to it."""
    key = await _registry(request)
    version = number_in_path(request, "version")
    return answer(described(await find_schema(actor_system_of(request), key, version)))


async def read_all(request: web.Request) -> web.Response:
    """Every version that isn't deleted; with ``deleted`` also deleted ones and deletions."""
    found = await _all(request, await _registry(request), gone=given(request, operations.DELETED))
    return answer({"getSchemaResponses": [described(each) for each in found]})


async def metadata(request: web.Request) -> web.Response:
    """Numbers, times and hashes of the versions, without the schemas."""
    key = await _registry(request)
    found = await _all(request, key, gone=True)
    if not found:
        raise no_schema(key)
    index = [
        {
            "version": each["version"],
            "timestamp": each["at_ms"],
            "hash": each["identity"].hex(),
            "deleted": each["deleted"],
        }
        for each in found
    ]
    return answer({"info": index[-1], "index": index})


async def find_version(request: web.Request) -> web.Response:
    """The version of the schema in the body; 404 if no current version has this schema."""
    key = await _registry(request)
    info, actor_system = _proposed(request), actor_system_of(request)
    policies = await _policies(request, key)
    validate(info, legacy_json=policies[LEGACY_JSON])
    version = None
    if await has_registry(actor_system, key):
        version = await actor_system.request(key, m.Find(info, schema_policies(policies)))
    if version is None:
        raise RemoteError(Reason.NOT_FOUND, f"{key.topic_name} has no such schema")
    return answer({"version": version})


async def check(request: web.Request) -> web.Response:
    """Whether the schema in the body could be registered, and the reason if not.

    ``?strategy=`` replaces the topic's compatibility strategy. ``all`` compares the schema with
    every version, including deleted ones.
    """
    key = await _registry(request)
    policies = await _policies(request, key)
    strategy = given(request, operations.STRATEGY)
    if strategy is not None:
        policies[STRATEGY] = _strategy(strategy)
    info, every = _proposed(request), given(request, operations.EVERY_VERSION)
    validate(info, legacy_json=policies[LEGACY_JSON])
    problems = []
    if await has_registry(actor_system_of(request), key):
        call = m.Check(info, schema_policies(policies), every)
        problems = await actor_system_of(request).request(key, call)
    return answer(
        {
            "compatibility": not problems,
            "schemaCompatibilityStrategy": policies[STRATEGY],
            "problems": problems,
        }
    )


def _strategy(text: str) -> str:
    try:
        return Strategy(text)
    except ValueError:
        raise AdminError(422, f"strategy must be one of {', '.join(Strategy)}") from None


# -- changing ----------------------------------------------------------------------


async def upload(request: web.Request) -> web.Response:
    """Register the schema in the body, even where clients may not register schemas.

    A topic that doesn't exist is created as for its first producer, by the policy
    autoTopicCreation.
    """
    proposed = _proposed(request)
    try:
        key = await _registry(request)
    except RemoteError as error:
        if error.kind != Reason.NOT_FOUND:
            raise
        key = await _create(request, proposed)
    info = replace(proposed, name=key.topic)
    policies = {**await _policies(request, key), AUTO_UPDATE: True}
    register = m.Register(info, schema_policies(policies))
    found = await actor_system_of(request).request(key, register)
    return answer({"version": {"version": found["version"]}})


async def _create(request: web.Request, info: SchemaInfo) -> ActorKey:
    """The registry of a new topic; an invalid schema creates no topic."""
    namespace, topic = namespace_of(request), topic_of(request).topic
    effective = Policies(namespace=namespace, effective=list(POLICIES))
    policies = await ask_catalog(request, effective)
    validate(info, legacy_json=policies[LEGACY_JSON])
    at_home = means_home(request)
    found = await ask_catalog(request, EnsureTopic(str(topic), at_home))
    return ActorKey.of_schema_registry(topic, found["incarnation"])


async def delete(request: web.Request) -> web.Response:
    """Delete all versions of the schema. ``force`` is recorded and has no further effect."""
    key = await _registry(request)
    actor_system, forced = actor_system_of(request), given(request, FORCE)
    latest = await find_schema(actor_system, key, None)
    call = m.Delete(latest["version"], forced)
    return answer({"version": await actor_system.request(key, call)})


class VersionMetadata(TypedDict):
    """A version of a schema without the schema."""

    version: int
    timestamp: int
    hash: str
    deleted: bool


class Metadata(TypedDict):
    """The newest version, and all of them."""

    info: VersionMetadata
    index: list[VersionMetadata]


_FIND_VERSION = Operation(
    "POST",
    f"{operations.SCHEMAS}/version",
    body=operations.ProposedSchema,
    answers={200: operations.VersionNumber},
)

ROUTES: tuple[Route, ...] = (
    Route(operations.GET_LATEST, read_latest),
    Route(operations.GET, read_one),
    Route(operations.LIST, read_all),
    Route(reads(f"{operations.SCHEMAS}/metadata", Metadata, *operations.POINT_IN_TIME), metadata),
    Route(operations.UPLOAD, upload),
    Route(operations.DELETE, delete),
    Route(_FIND_VERSION, find_version),
    Route(operations.CHECK, check),
)
