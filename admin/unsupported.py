"""Features of Pulsar's admin interface that velaray lacks: refused by name with status 501.

A policy that velaray doesn't support is never stored. Its route answers that it isn't set, accepts
values without effect, and refuses every other value by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from typing_extensions import TypedDict

from velaray.admin.binding import Route, given
from velaray.admin.clusters import known_cluster
from velaray.admin.http import (
    AdminError,
    Handler,
    answer,
    ask_catalog,
    done,
    find_target,
    is_set,
    namespace_of,
)
from velaray.broker.catalog.messages import Policies
from velaray.broker.catalog.pulsar_policies import says_nothing
from velaray.client.admin.namespaces import NAMESPACE, TOPIC, get_policy, remove_policy, set_policy
from velaray.client.admin.operations import V2, AnyObject, Operation, flag, reads

NOT_SUPPORTED = 501

_PULSARS = ("/admin/", "/lookup/", "/proxy-stats/")
_METHODS = ("GET", "PUT", "POST", "DELETE")
_FEATURES = {
    r"non-persistent/": "non-persistent topics",
    r"bookies/": "BookKeeper: the journal keeps its ledgers in files",
    r"(functions|worker|worker-stats)/": "functions",
    r"(sinks?|sources?)/": "connectors",
    r"packages/": "packages",
    r"resource-quotas": "resource quotas: Ray places every actor by itself",
    r"resourcegroups/|namespaces/.*/resourcegroup": "resource groups",
    r"proxy-stats/": "Pulsar's proxy",
    r"brokers/configuration/schemaRegistryCompatibilityCheckers": "other compatibility checkers:"
    " those of AVRO, JSON, PROTOBUF_NATIVE and KEY_VALUE are built in, and the policy"
    " schemaCompatibilityStrategy says how strict they are",
    r"brokers/configuration/": "dynamic configuration: set policies of the cluster",
    r"brokers/shutdown": "shutting a broker down: end `velaray start`",
    r"broker-stats/(mbeans|allocator-stats)": "statistics of a Java process",
    r"clusters/[^/]+/failureDomains": "failure domains: Ray places every actor by itself",
    r"clusters/[^/]+/namespaceIsolationPolicies": "isolation policies of namespaces",
    r"(namespaces|persistent)/.*/permissions/": "permissions of roles",
    r"namespaces/.*/split": "bundles: every namespace has one",
    r"namespaces/.*/topicHashPositions": "bundles: every namespace has one",
    r"persistent/.*/truncate": "truncating: clear the backlogs, and lower the retention",
    r"persistent/.*/offload": "offloading ledgers to other stores",
}
"""Features by path prefix (after the version); the first matching prefix applies."""


def refusal(request: web.Request, feature: str = "") -> AdminError:
    """The refusal of a request for an unsupported feature."""
    what = f"velaray doesn't support {request.method} {request.path}"
    return AdminError(NOT_SUPPORTED, f"{what}: {feature}" if feature else what)


def _feature_of(path: str) -> str:
    rest = path.lstrip("/").removeprefix("admin/").removeprefix("lookup/")
    version, _, behind = rest.partition("/")
    if version in ("v2", "v3"):
        rest = behind
    elif path.startswith("/admin/"):
        return "names with a cluster in them (Pulsar's first admin interface)"
    return next((what for start, what in _FEATURES.items() if re.match(start, rest)), "")


@web.middleware
async def refuse_unsupported(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse Pulsar's other routes, and policies for all clusters (``isGlobal``), by name."""
    if is_set(request, "isGlobal"):
        raise refusal(request, "global topic policies (isGlobal): set them on each cluster")
    try:
        return await handler(request)
    except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
        if request.match_info.http_exception is not error:
            raise
        if not request.path.startswith(_PULSARS) or request.method not in _METHODS:
            raise
        raise refusal(request, _feature_of(request.path)) from error


# -- unsupported policies ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Unapplied:
    """An unsupported policy of Pulsar's: its paths, its name, and the values without effect."""

    name: str
    feature: str
    namespace: str = ""
    topic: str = ""
    changes_nothing: Callable[[Any], bool] = says_nothing
    unset: Any = None


def _all_types(value: Any) -> bool:
    types = {"Exclusive", "Shared", "Failover", "Key_Shared"}
    return says_nothing(value) or (isinstance(value, list) and set(map(str, value)) == types)


def _field_says_nothing(name: str) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        return value is None or (isinstance(value, dict) and says_nothing(value.get(name)))

    return check


def _same(path: str, name: str, feature: str, **more: Any) -> _Unapplied:
    """An unsupported policy with the same path at both levels."""
    return _Unapplied(name, feature, path, path, **more)


_BOOKKEEPER = "the journal keeps its ledgers in files, without BookKeeper"
_OFFLOAD = "ledgers are never moved to other stores"
_UNAPPLIED = (
    _same(
        "subscriptionTypesEnabled",
        "subscriptionTypesEnabled",
        "every type of subscription is enabled",
        changes_nothing=_all_types,
        unset=[],
    ),
    _same(
        "deduplicationSnapshotInterval",
        "deduplicationSnapshotInterval",
        "checkpoints hold them",
    ),
    _same("persistence", "persistence", _BOOKKEEPER),
    _same(
        "subscribeRate",
        "subscribeRate",
        "consumers may subscribe at any rate",
        changes_nothing=_field_says_nothing("subscribeThrottlingRatePerConsumer"),
    ),
    _same("offloadPolicies", "offloadPolicies", _OFFLOAD),
    _same(
        "inactiveTopicPolicies",
        "inactiveTopicPolicies",
        "inactive topics are never deleted",
        changes_nothing=_field_says_nothing("deleteWhileInactive"),
    ),
    _same("entryFilters", "entryFilters", "brokers filter no entries"),
    _same(
        "dispatcherPauseOnAckStatePersistent",
        "dispatcherPauseOnAckStatePersistent",
        "the state of acknowledgements is journaled whole",
        changes_nothing=lambda value: value is False,
        unset=False,
    ),
    _Unapplied("resourceGroup", "there are no resource groups", topic="resourceGroup"),
    _Unapplied("resourceGroup", "there are no resource groups", namespace="resourcegroup"),
    _Unapplied("shadowTopics", "there are no shadow topics", topic="shadowTopics", unset=[]),
    _Unapplied(
        "allowedClusters", "the tenant's allowed clusters apply", "allowedClusters", unset=[]
    ),
    _Unapplied("bookieAffinity", _BOOKKEEPER, "persistence/bookieAffinity"),
    _Unapplied("antiAffinity", "Ray places every actor by itself", "antiAffinity"),
    _Unapplied("encryptionRequired", "producers choose it", "encryptionRequired", unset=False),
    _Unapplied(
        "subscriptionAuthMode",
        "there are no permissions of roles",
        "subscriptionAuthMode",
        unset="None",
    ),
    _Unapplied("offloadThreshold", _OFFLOAD, "offloadThreshold", unset=-1),
    _Unapplied("offloadThresholdInSeconds", _OFFLOAD, "offloadThresholdInSeconds", unset=-1),
    _Unapplied("offloadDeletionLagMs", _OFFLOAD, "offloadDeletionLagMs"),
    _Unapplied("migration", "a tenant is moved with `velaray migrate`", "migration"),
)


async def _check_namespace(request: web.Request) -> None:
    await ask_catalog(request, Policies(namespace=namespace_of(request)))


async def _value(request: web.Request) -> Any:
    """The body as JSON, or as plain text: Pulsar's tools send a group's name as text."""
    text = (await request.text()).strip()
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return text


def _handlers(policy: _Unapplied, *, of_topic: bool) -> tuple[Handler, Handler, Handler]:
    async def check(request: web.Request) -> None:
        await (find_target(request) if of_topic else _check_namespace(request))

    async def read(request: web.Request) -> web.Response:
        await check(request)
        return done() if policy.unset is None else answer(policy.unset)

    async def change(request: web.Request) -> web.Response:
        await check(request)
        if not policy.changes_nothing(await _value(request)):
            text = f"velaray doesn't support the policy {policy.name}: {policy.feature}"
            raise AdminError(NOT_SUPPORTED, text)
        return done()

    async def remove(request: web.Request) -> web.Response:
        await check(request)
        return done()

    return read, change, remove


def _routes() -> Iterator[Route]:
    for policy in _UNAPPLIED:
        for base, path in ((NAMESPACE, policy.namespace), (TOPIC, policy.topic)):
            if path:
                read, change, remove = _handlers(policy, of_topic=base == TOPIC)
                name = f"the policy {policy.name}, which isn't applied: {policy.feature}"
                yield Route(get_policy(base, path), read, f"Read {name}.")
                for method in ("PUT", "POST"):
                    yield Route(set_policy(base, path, method), change, f"Set {name}.")
                yield Route(remove_policy(base, path), remove, f"Remove {name}.")
                if path == "offloadPolicies" and base == NAMESPACE:
                    other = remove_policy(base, "removeOffloadPolicies")
                    yield Route(other, remove, f"Remove {name}.")


# -- features that are always empty ------------------------------------------------


def _none(found: Any) -> Handler:
    """A handler that answers ``found``, the empty value; the cluster of the path must be known."""

    async def read(request: web.Request) -> web.Response:
        if "cluster" in request.match_info:
            await known_cluster(request)
        return answer(found)

    return read


def _only(value: Any, feature: str) -> Handler:
    """A handler that accepts only ``value``, which turns the feature off."""

    async def change(request: web.Request) -> web.Response:
        await known_cluster(request)
        if await _value(request) != value:
            raise refusal(request, feature)
        return done()

    return change


async def isolated_brokers(request: web.Request) -> web.Response:
    """The one broker, which has no isolation policy."""
    await known_cluster(request)
    return answer([{"brokerName": request.host, "isPrimary": False, "namespaceRegex": []}])


async def isolated_broker(request: web.Request) -> web.Response:
    """One broker of `isolated_brokers`."""
    await known_cluster(request)
    broker = request.match_info["broker"]
    if broker != request.host:
        raise AdminError(404, f"no broker {broker[:100]!r}; there is {request.host}")
    return answer({"brokerName": broker, "isPrimary": False, "namespaceRegex": []})


async def set_migrated(request: web.Request) -> web.Response:
    """Accept only false: clusters are never migrated as a whole."""
    await known_cluster(request)
    if given(request, MIGRATED):
        raise refusal(request, "migrating a whole cluster; `velaray migrate` moves a tenant")
    return done()


class IsolatedBroker(TypedDict):
    """A broker and the namespaces for which it is set aside."""

    brokerName: str
    isPrimary: bool
    namespaceRegex: list[str]


class Migrated(TypedDict):
    """Whether a whole cluster is migrated."""

    migrated: bool


MIGRATED = flag("migrated", "Only false: clusters are never migrated as a whole.")
_CLUSTER = f"{V2}/clusters/{{cluster}}"
_ISOLATION = f"{_CLUSTER}/namespaceIsolationPolicies"

ROUTES: tuple[Route, ...] = (
    *_routes(),
    Route(reads(f"{_CLUSTER}/peers", list[str]), _none([]), "The peer clusters, always none."),
    Route(
        Operation("POST", f"{_CLUSTER}/peers", body=Any),
        _only([], "peer clusters"),
        "Accept only an empty list: there are no peer clusters.",
    ),
    Route(
        reads(f"{_CLUSTER}/failureDomains", AnyObject),
        _none({}),
        "The failure domains, always none.",
    ),
    Route(
        reads(f"{_CLUSTER}/migrate", Migrated),
        _none({"migrated": False}),
        "Whether the cluster is migrated as a whole: it isn't.",
    ),
    Route(Operation("POST", f"{_CLUSTER}/migrate", (MIGRATED,), body=Any), set_migrated),
    Route(reads(_ISOLATION, AnyObject), _none({}), "The isolation policies, always none."),
    Route(reads(f"{_ISOLATION}/brokers", list[IsolatedBroker]), isolated_brokers),
    Route(reads(f"{_ISOLATION}/brokers/{{broker}}", IsolatedBroker), isolated_broker),
    Route(reads(f"{V2}/resourcegroups", list[str]), _none([]), "The resource groups, always none."),
)
