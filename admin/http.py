"""Shared parts of the admin routes: names, bodies, answers, errors, calls to many actors."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from velaray.actors.catalog.machine import SYSTEM_NAMESPACE, SYSTEM_TENANT
from velaray.actors.catalog.policies import InvalidPolicyError
from velaray.actors.machine import Reason
from velaray.admin.body_limits import fault_in_value
from velaray.broker.catalog.messages import Home, Topic
from velaray.broker.coordinator.coordinators import is_systems
from velaray.broker.garbage_collection.deletion import is_deletion_topic
from velaray.events.ids import (
    INT64_MAX,
    ActorKey,
    InvalidNameError,
    MessageId,
    TopicName,
    check_name,
)
from velaray.events.portable import PortableError
from velaray.journal.errors import JournalError, StorageFull
from velaray.schemas import InvalidSchemaError
from velaray.topology.actor_system import ActorSystem
from velaray.topology.auth import (
    AuthenticationFailed,
    Credentials,
    Identity,
    Method,
    authenticate,
    before,
    certificate_role,
)
from velaray.topology.fan_out import each
from velaray.topology.messages import ReplyT, Request
from velaray.topology.rpc import RemoteError, reason_of
from velaray.topology.transient import NO_ANSWER, TRANSIENT
from velaray.wire.replication import CLIENT_VERSION
from velaray.wire.turns import REQUEST, Turns

MAX_BODY = 1 << 20
RETRY_AFTER_S = 1

ACTOR_SYSTEM = web.AppKey("fabric", ActorSystem)
IDENTITY = web.RequestKey("identity", Identity)
"""What the caller has proved."""
TURNS = web.AppKey("turns", Turns)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_STATUS = {
    Reason.NOT_FOUND: 404,
    Reason.ALREADY_EXISTS: 409,
    Reason.INVALID: 422,
    Reason.CONFLICT: 409,
    Reason.BUSY: 412,
    Reason.FENCED: 503,
    Reason.TERMINATED: 409,
    Reason.NOT_ALLOWED: 412,
    Reason.NOT_EMPTY: 409,
    Reason.UNAVAILABLE: 503,
    Reason.ELSEWHERE: 503,
    Reason.STORAGE_FULL: 507,
    Reason.NO_SUBSCRIPTION: 404,
    Reason.QUOTA_HELD: 503,
    Reason.QUOTA_EXCEEDED: 412,
    Reason.UNASSIGNABLE: 409,
    Reason.INCOMPATIBLE_SCHEMA: 409,
    Reason.INVALID_SCHEMA: 422,
}


NOT_SUPPORTED = 501


class AdminError(PortableError):
    """A refused request: its HTTP status and a text for the caller."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def _problem(status: int, reason: str, **headers: str) -> web.Response:
    if status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return web.json_response({"reason": reason}, status=status, headers=headers)


def status_of(error: Exception) -> int:
    """The HTTP status of a partition's refusal; 503 for a call without an answer."""
    if not isinstance(error, RemoteError):
        return 503
    try:
        return _STATUS[Reason(error.kind)]
    except ValueError:
        return 500


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every refusal and failure with ``{"reason": ...}`` and Pulsar's status."""
    try:
        return await handler(request)
    except AdminError as error:
        return _problem(error.status, str(error))
    except (InvalidNameError, InvalidPolicyError, InvalidSchemaError) as error:
        return _problem(422, str(error))
    except RemoteError as error:
        if error.kind == Reason.ELSEWHERE:
            return await _sent_home(request, error)
        return _problem(status_of(error), error.message)
    except NO_ANSWER as error:
        return _problem(503, f"{reason_of(error)}; try again")
    except JournalError as error:
        return _problem(507 if isinstance(error, StorageFull) else 500, error.told)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        allowed = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        return _problem(error.status, f"{error.reason}: {request.method} {request.path}", **allowed)


async def _sent_home(request: web.Request, error: RemoteError) -> web.Response:
    """Redirect the client to the tenant's home cluster, as Pulsar does."""
    tenant = request.match_info["tenant"]
    try:
        home = await ask_catalog(request, Home(tenant))
    except TRANSIENT as failure:
        return _problem(503, f"{reason_of(failure)}; try again")
    if home is None:  # the tenant's home is this cluster again
        return _problem(503, f"{error.message}; try again")
    urls = home["urls"]
    plain, by_tls = urls["admin_url"], urls["admin_url_tls"]
    url = (by_tls or plain) if request.secure else (plain or by_tls)
    location = url.rstrip("/") + str(request.rel_url)
    return web.json_response({"reason": error.message}, status=307, headers={"Location": location})


@web.middleware
async def take_turns(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Serve a request when it is the turn of its address: clients of topics need the loop too."""
    await request.app[TURNS].take(request.remote, 2 * REQUEST)
    return await handler(request)


@web.middleware
async def check_token(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer 401 to requests without a valid token, or a certificate that names a role, if the
    cluster requires tokens."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    try:
        request[IDENTITY] = await identify(request, token if scheme.lower() == "bearer" else "")
    except AuthenticationFailed as error:
        return _problem(401, str(error), **{"WWW-Authenticate": "Bearer"})
    return await handler(request)


async def identify(request: web.Request, token: str) -> Identity:
    """What a token proves, or, without one, the certificate of the connection.

    Raises `AuthenticationFailed`.
    """
    role = certificate_role(request.get_extra_info("peercert"))
    if role and not token:
        return Identity(role, method=Method.CERTIFICATE)
    settings, credentials = request.app[ACTOR_SYSTEM].config.auth, Credentials("token", token)
    keys = before(settings, credentials)
    if keys is not None:
        await keys.fetch()
    return authenticate(settings, credentials)


# -- requests ----------------------------------------------------------------------


def actor_system_of(request: web.Request) -> ActorSystem:
    """The actor system of this application."""
    return request.app[ACTOR_SYSTEM]


def means_home(request: web.Request) -> bool:
    """Whether the request addresses the tenant's home cluster.

    Replicators and tenant migrations address this cluster itself. Their ``User-Agent`` identifies
    them.
    """
    return not request.headers.get("User-Agent", "").startswith(CLIENT_VERSION)


def namespace_of(request: web.Request) -> str:
    """``tenant/namespace`` of the path. Raises `InvalidNameError`."""
    tenant = check_name("tenant", request.match_info["tenant"])
    return f"{tenant}/{check_name('namespace', request.match_info['namespace'])}"


def users_namespace_of(request: web.Request) -> str:
    """`namespace_of`. Raises `AdminError` for changes to the system namespace."""
    name = namespace_of(request)
    if request.method != "GET" and name == f"{SYSTEM_TENANT}/{SYSTEM_NAMESPACE}":
        raise AdminError(405, f"namespace {name} belongs to the system: it can't be changed")
    return name


def topic_of(request: web.Request) -> TopicName:
    """The topic or partition of the path. Raises `InvalidNameError`."""
    return TopicName.parse(f"persistent://{namespace_of(request)}/{request.match_info['topic']}")


def _users_topic_of(request: web.Request) -> TopicName:
    """`topic_of`. Raises `AdminError` for system topics, except when a deletion topic is read."""
    name = topic_of(request)
    if is_systems(name) and not (request.method == "GET" and is_deletion_topic(name)):
        raise AdminError(405, f"{name} belongs to the system: it can't be read or changed")
    return name


def whole_topic_of(request: web.Request) -> TopicName:
    """The topic of the path, which must be neither a partition nor a system topic.

    Raises `InvalidNameError`, `AdminError`.
    """
    name = _users_topic_of(request)
    if name.partition >= 0:
        raise InvalidNameError(f"{name} names a partition; name the topic {name.topic}")
    return name


def is_set(request: web.Request, name: str) -> bool:
    """A query parameter that is ``true``, ``false`` or absent (false). Raises `AdminError`."""
    text = request.query.get(name, "false").lower()
    if text not in ("true", "false"):
        raise AdminError(400, f"query parameter {name} must be true or false, not {text!r}")
    return text == "true"


def number_in_path(request: web.Request, name: str, most: int = INT64_MAX) -> int:
    """A number of the path, 0 to ``most``. Raises `AdminError`."""
    text = request.match_info[name]
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= most):
        raise AdminError(400, f"{name} must be a whole number, at most {most}, not {text[:40]!r}")
    return int(text)


async def json_body(request: web.Request) -> Any:
    """The parsed body; None if it is empty. Raises `AdminError`."""
    raw = await request.read()
    if not raw.strip():
        return None
    try:
        value = json.loads(raw)
        # JSON can spell halves of surrogate pairs, which UTF-8 can't encode.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise AdminError(400, f"the body isn't JSON: {error}") from error
    return _within_limits(value)


def _within_limits(value: Any) -> Any:
    """The parsed body. Raises `AdminError` if a part is out of its limit."""
    fault = fault_in_value(value)
    if fault:
        raise AdminError(400, fault)
    return value


async def json_or_text(request: web.Request) -> Any:
    """The body as JSON, or as plain text: Pulsar's tools send some names as text."""
    text = (await request.text()).strip()
    try:
        value = json.loads(text) if text else None
    except (ValueError, RecursionError):
        value = text
    return _within_limits(value)


# -- answers -----------------------------------------------------------------------


def done() -> web.Response:
    """The answer to a successful request without a result."""
    return web.Response(status=204)


def answer(value: Any) -> web.Response:
    """``value`` as JSON."""
    return web.json_response(value)


# -- the cluster -------------------------------------------------------------------


async def ask_catalog(request: web.Request, asked: Request[ReplyT]) -> ReplyT:
    """Send a request to the catalog. Raises what `ActorSystem.request` raises."""
    return await actor_system_of(request).request(ActorKey.catalog(), asked)


@dataclass(frozen=True, slots=True)
class Target:
    """A topic, or one partition of it, as recorded in the catalog.

    ``partitions`` is 0 for a plain topic.
    """

    name: TopicName
    partitions: int
    incarnation: int
    properties: Mapping[str, str]

    @property
    def is_many(self) -> bool:
        """Whether this is a partitioned topic as a whole."""
        return self.partitions > 0 and self.name.partition < 0

    def members(self) -> list[TopicName]:
        """The names that partition actors serve: all partitions, or the one that the path names."""
        return self.name.members(self.partitions) if self.is_many else [self.name]

    def keys(self) -> list[ActorKey]:
        """The partition actors of `members`."""
        return [ActorKey.of_partition(name, self.incarnation) for name in self.members()]


async def find_target(request: web.Request) -> Target:
    """The topic or partition of the path.

    Raises `RemoteError` (NOT_FOUND), and `AdminError` for a system topic.
    """
    name = _users_topic_of(request)
    found = await ask_catalog(request, Topic(str(name)))
    return Target(name, found["partitions"], found["incarnation"], found["properties"])


async def find_single(request: web.Request, what: str) -> Target:
    """As `find_target`; raises `AdminError` for a partitioned topic as a whole."""
    target = await find_target(request)
    if target.is_many:
        raise AdminError(
            405,
            f"{what} is not allowed on a partitioned topic: name a partition, "
            f"{target.name.of_partition(0)} to {target.name.of_partition(target.partitions - 1)}",
        )
    return target


def partition_of(target: Target, message: MessageId) -> Target:
    """The partition of ``target`` that has a message, by the id. Raises `AdminError` if that
    doesn't name one of several partitions."""
    if target.is_many and 0 <= message.partition < target.partitions:
        member = target.name.of_partition(message.partition)
        return Target(member, target.partitions, target.incarnation, target.properties)
    if target.is_many:
        raise AdminError(
            400,
            f"name the partition of {target.name}: write ledger:entry:partition, or "
            f"{target.name.of_partition(0)} for the topic",
        )
    return target


async def ask_each(request: web.Request, target: Target, asked: Request[ReplyT]) -> list[ReplyT]:
    """Send a request to every partition of ``target``; returns the answers in the order of the
    partitions.

    A few are under way at a time. Raises the first error; the remaining requests may or may not
    have been executed.
    """
    actor_system = actor_system_of(request)
    return await each(target.keys(), lambda key: actor_system.request(key, asked))
