"""Routes of the admin interface for look-ups, tenants and namespaces."""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import web
from typing_extensions import TypedDict

from velaray.actors.catalog.clusters import REPLICATION
from velaray.actors.machine import Reason
from velaray.admin.binding import Route, body_of, given
from velaray.admin.http import (
    AdminError,
    actor_system_of,
    answer,
    ask_catalog,
    done,
    means_home,
    namespace_of,
    topic_of,
)
from velaray.admin.unsupported import refusal
from velaray.broker.catalog import messages as m
from velaray.broker.catalog.pulsar_policies import as_namespace_document, from_namespace_document
from velaray.broker.garbage_collection.topic_deletion import delete_namespace as delete_whole
from velaray.broker.proxy.proxy import Proxy
from velaray.client.admin import namespaces as of_namespaces
from velaray.client.admin import tenants as operations
from velaray.client.admin.operations import FORCE, V2, Parameter, reads
from velaray.events.ids import check_name
from velaray.topology.rpc import RemoteError

LISTENER: Parameter[str | None] = Parameter(
    "listenerName", str, None, "Not supported: name the listener with a pulsar:// service URL."
)
MODE = Parameter("mode", str, "PERSISTENT", "PERSISTENT, NON_PERSISTENT or ALL.")

# -- look-ups ----------------------------------------------------------------------


async def lookup(request: web.Request) -> web.Response:
    """The URL that serves a topic partition, which is created if policy allows, and activated."""
    if request.match_info["domain"] != "persistent":
        raise refusal(request, "non-persistent topics")
    listener = given(request, LISTENER) or request.headers.get("X-Pulsar-ListenerName")
    if listener:
        raise refusal(
            request,
            f"look-ups over HTTP by way of a listener (here {listener[:100]!r}): "
            "name it with a pulsar:// service URL",
        )
    proxy = Proxy(actor_system_of(request))
    located = await proxy.locate(topic_of(request), at_home=means_home(request))
    config = actor_system_of(request).config
    plain, by_tls = map(config.seen_by_clients, located.urls())
    return answer(
        {
            "brokerUrl": plain,
            "brokerUrlTls": by_tls,
            "httpUrl": _here(request, config.plain_admin_url),
            "httpUrlTls": _here(request, config.tls_admin_url),
            "nativeUrl": plain,
        }
    )


def _here(request: web.Request, url: str) -> str:
    """An admin URL of this cluster with the host by which the client reaches it; "" for ""."""
    asked, wanted = request.url.origin(), urlsplit(url)
    if not url or asked.scheme == wanted.scheme:
        return url and str(asked)
    return str(asked.with_scheme(wanted.scheme).with_port(wanted.port))


# -- tenants -----------------------------------------------------------------------


async def list_tenants(request: web.Request) -> web.Response:
    """The names of all tenants."""
    return answer([*await ask_catalog(request, m.Tenants())])


async def get_tenant(request: web.Request) -> web.Response:
    """A tenant's admin roles and allowed clusters."""
    name = request.match_info["tenant"]
    tenants = await ask_catalog(request, m.Tenants())
    if name not in tenants:
        raise RemoteError(Reason.NOT_FOUND, f"no tenant {name!r}")
    found = tenants[name]
    return answer(
        {"adminRoles": found["admin_roles"], "allowedClusters": found["allowed_clusters"]}
    )


def _tenant(request: web.Request) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """A tenant's name, its admin roles and its allowed clusters."""
    body = body_of(request)
    roles, allowed = body.get("adminRoles", ()), body.get("allowedClusters", ())
    return request.match_info["tenant"], tuple(roles), tuple(allowed)


async def create_tenant(request: web.Request) -> web.Response:
    """Create a tenant; 409 if it exists."""
    create = m.CreateTenant(*_tenant(request))
    reply = await ask_catalog(request, create)
    if not reply["changed"]:
        raise AdminError(409, f"tenant {create.tenant} exists")
    return done()


async def update_tenant(request: web.Request) -> web.Response:
    """Replace a tenant's admin roles and allowed clusters."""
    await ask_catalog(request, m.UpdateTenant(*_tenant(request)))
    return done()


async def delete_tenant(request: web.Request) -> web.Response:
    """Delete a tenant without namespaces."""
    await ask_catalog(request, m.DeleteTenant(request.match_info["tenant"]))
    return done()


# -- namespaces --------------------------------------------------------------------


async def list_namespaces(request: web.Request) -> web.Response:
    """A tenant's namespaces, as ``tenant/namespace``."""
    tenant = check_name("tenant", request.match_info["tenant"])
    return answer(await ask_catalog(request, m.Namespaces(tenant)))


async def get_namespace(request: web.Request) -> web.Response:
    """The policies that are set on a namespace, in Pulsar's names."""
    own = await ask_catalog(request, m.Policies(namespace=namespace_of(request)))
    return answer(as_namespace_document(own, actor_system_of(request).config.name))


async def create_namespace(request: web.Request) -> web.Response:
    """Create a namespace with the policies of the body; 409 if it exists.

    The body is validated first. A crash may leave the namespace without some of its policies.
    """
    namespace = namespace_of(request)
    policies = from_namespace_document(body_of(request), actor_system_of(request).config.name)
    if REPLICATION in policies:
        tenant = request.match_info["tenant"]
        await ask_catalog(request, m.MayReplicate(tenant, policies[REPLICATION]))
    reply = await ask_catalog(request, m.CreateNamespace(namespace))
    if not reply["changed"]:
        raise AdminError(409, f"namespace {namespace} exists")
    for name, value in policies.items():
        await ask_catalog(request, m.SetPolicy(name, value, namespace=namespace))
    return done()


async def delete_namespace(request: web.Request) -> web.Response:
    """Delete a namespace; 409 if it has topics, unless ``force`` deletes them too."""
    force = given(request, FORCE)
    await delete_whole(actor_system_of(request), namespace_of(request), force=force)
    return done()


async def namespace_topics(request: web.Request) -> web.Response:
    """The names of a namespace's topics, with each partition, by ``mode``."""
    mode = given(request, MODE).upper()
    if mode not in ("PERSISTENT", "NON_PERSISTENT", "ALL"):
        raise AdminError(400, f"mode must be PERSISTENT, NON_PERSISTENT or ALL, not {mode!r}")
    found = await served_topics(request, at_home=means_home(request))
    return answer([] if mode == "NON_PERSISTENT" else found)


async def served_topics(request: web.Request, *, at_home: bool = False) -> list[str]:
    """The names of the plain topics and partitions in the namespace of the path.

    With ``at_home``: raises `RemoteError` (ELSEWHERE) if the tenant's home is another cluster.
    """
    asked = m.Topics(namespace_of(request), partitions=True, at_home=at_home)
    found = await ask_catalog(request, asked)
    return [str(name) for name in found]


async def no_topics(request: web.Request) -> web.Response:
    """The non-persistent topics of a namespace, always none; the namespace must exist."""
    await ask_catalog(request, m.Topics(namespace_of(request)))
    return answer([])


class Located(TypedDict):
    """The URLs that serve a topic."""

    brokerUrl: str
    brokerUrlTls: str
    httpUrl: str
    httpUrlTls: str
    nativeUrl: str


_LOOKUP = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"
_NON_PERSISTENT = f"{V2}/non-persistent/{{tenant}}/{{namespace}}"

ROUTES: tuple[Route, ...] = (
    Route(reads(_LOOKUP, Located, LISTENER), lookup),
    Route(operations.LIST, list_tenants),
    Route(operations.GET, get_tenant),
    Route(operations.CREATE, create_tenant),
    Route(operations.UPDATE, update_tenant),
    Route(operations.DELETE, delete_tenant),
    Route(of_namespaces.LIST, list_namespaces),
    Route(of_namespaces.GET, get_namespace),
    Route(of_namespaces.CREATE, create_namespace),
    Route(of_namespaces.DELETE, delete_namespace),
    Route(reads(f"{of_namespaces.NAMESPACE}/topics", list[str], MODE), namespace_topics),
    Route(reads(_NON_PERSISTENT, list[str]), no_topics),
    Route(reads(f"{_NON_PERSISTENT}/partitioned", list[str]), no_topics),
)
