"""Features of Pulsar's admin interface that velaray lacks: refused by name with status 501.

Policies that velaray doesn't apply are rows of the table of policies
(`velaray.admin.policies_not_applied`).
"""

from __future__ import annotations

import re
from typing import Any

from aiohttp import web
from typing_extensions import TypedDict

from velaray.admin.binding import Route, given
from velaray.admin.clusters import known_cluster
from velaray.admin.http import (
    NOT_SUPPORTED,
    AdminError,
    Handler,
    answer,
    done,
    is_set,
    json_or_text,
)
from velaray.client.admin.operations import V2, AnyObject, Operation, flag, reads

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
    r"namespaces/.*/split": "bundles: every namespace has one",
    r"namespaces/.*/topicHashPositions": "bundles: every namespace has one",
    r"persistent/.*/truncate": "truncating: clear the backlogs, and lower the retention",
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
        if await json_or_text(request) != value:
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
