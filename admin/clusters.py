"""Routes of the admin interface for clusters and for the home clusters of tenants.

The token for another cluster can be set and is never returned.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aiohttp import web

from velaray.actors.catalog.policy_types import says_nothing
from velaray.actors.catalog.state import Progress
from velaray.actors.machine import Reason
from velaray.admin.binding import Route, body_of
from velaray.admin.http import (
    AdminError,
    actor_system_of,
    answer,
    ask_catalog,
    done,
)
from velaray.broker.catalog import messages as m
from velaray.client.admin import clusters as operations
from velaray.client.admin import tenants as of_tenants
from velaray.client.admin.operations import V2, Texts, reads
from velaray.events.ids import check_name
from velaray.geo.tenant_migration.tenant_metadata import read_tenant
from velaray.topology.replication_keys import key_names
from velaray.topology.rpc import RemoteError

# Pulsar's fields that are supported, and the catalog's names for them.
_TEXTS = {
    "serviceUrl": "admin_url",
    "serviceUrlTls": "admin_url_tls",
    "brokerServiceUrl": "service_url",
    "brokerServiceUrlTls": "service_url_tls",
    "progress": "progress",
}
_CREDENTIALS = "authenticationParameters"
_PLUGIN = "authenticationPlugin"
# Fields of this interface's own answers, and fields of Pulsar's tools that have no effect alone.
_WITHOUT_MEANING = {
    *("hasToken", "local", "replicationKeys"),
    *("brokerClientTlsTrustStoreType", "brokerClientTlsKeyStoreType"),
    "brokerClientTlsEnabled",  # TLS is used where there is a URL for it
}
# Values that Pulsar's tools send by default for features that aren't supported.
_DEFAULTS = {
    "brokerClientSslFactoryPlugin": "org.apache.pulsar.common.util.DefaultPulsarSslFactory"
}


async def list_clusters(request: web.Request) -> web.Response:
    """The names of the known clusters."""
    return answer([*await ask_catalog(request, m.Clusters())])


async def get_cluster(request: web.Request) -> web.Response:
    """The URLs of a cluster, whether a token for it is stored, and the names of its keys."""
    found = await known_cluster(request)
    return answer(
        {
            "serviceUrl": found["admin_url"],
            "serviceUrlTls": found["admin_url_tls"],
            "brokerServiceUrl": found["service_url"],
            "brokerServiceUrlTls": found["service_url_tls"],
            "progress": found["progress"],
            "hasToken": found["has_token"],
            "local": found["own"],
            "replicationKeys": await _names_of_keys(request),
        }
    )


async def _names_of_keys(request: web.Request) -> list[str]:
    config, cluster = actor_system_of(request).config, request.match_info["cluster"]
    return await asyncio.to_thread(key_names, config, cluster) if config.replication_keys else []


async def known_cluster(request: web.Request) -> dict[str, Any]:
    """The cluster of the path. Raises `RemoteError` (NOT_FOUND)."""
    name = request.match_info["cluster"]
    clusters = await ask_catalog(request, m.Clusters())
    if name not in clusters:
        raise RemoteError(Reason.NOT_FOUND, f"no cluster {name!r}")
    return dict(clusters[name])


async def create_cluster(request: web.Request) -> web.Response:
    """Register another cluster; 409 if it is registered."""
    given = _given(request)
    name = given.cluster
    plain = given.service_url or "", given.admin_url or ""
    by_tls = given.service_url_tls or "", given.admin_url_tls or ""
    for field, *urls in zip(("brokerServiceUrl", "serviceUrl"), plain, by_tls, strict=True):
        if not any(urls):
            raise AdminError(400, f"cluster {name} needs a {field}")
    progress = given.progress or Progress.EXACT
    register = m.RegisterCluster(name, *plain, given.token or "", progress, *by_tls)
    reply = await ask_catalog(request, register)
    if not reply["changed"]:
        raise AdminError(409, f"cluster {name} exists")
    return done()


async def update_cluster(request: web.Request) -> web.Response:
    """Change fields of another cluster; empty credentials remove its token."""
    await ask_catalog(request, _given(request))
    return done()


async def delete_cluster(request: web.Request) -> web.Response:
    """Remove another cluster; 412 while a tenant may use it or a policy names it."""
    await ask_catalog(request, m.DeleteCluster(request.match_info["cluster"]))
    return done()


def _given(request: web.Request) -> m.UpdateCluster:
    """The cluster of the path with the fields of the body. Raises `AdminError`."""
    given: dict[str, str] = {}
    for field, value in body_of(request).items():
        if field in _WITHOUT_MEANING:
            continue
        if field == _CREDENTIALS:
            given["token"] = _token(value)
        elif field == _PLUGIN:
            _check_plugin(value)
        elif field in _TEXTS:
            given[_TEXTS[field]] = value
        elif not says_nothing(value) and value != _DEFAULTS.get(field):
            raise AdminError(422, f"field {field!r} isn't supported here; leave it out")
    progress = read_progress(given["progress"]) if "progress" in given else None
    return m.UpdateCluster(
        request.match_info["cluster"],
        given.get("service_url"),
        given.get("admin_url"),
        given.get("token"),
        progress,
        given.get("service_url_tls"),
        given.get("admin_url_tls"),
    )


def read_progress(text: str) -> Progress:
    """The form of progress of this name. Raises `AdminError`."""
    try:
        return Progress(text)
    except ValueError as error:
        known = " or ".join(Progress)
        raise AdminError(422, f"progress must be {known}, not {text[:40]!r}") from error


def _check_plugin(name: str) -> None:
    """Raise `AdminError` for authentication plugins other than token authentication."""
    if name and name != "token" and not name.endswith(".AuthenticationToken"):
        raise AdminError(422, f"{_PLUGIN} can only be AuthenticationToken, not {name[:100]!r}")


def _token(text: str) -> str:
    """The token of Pulsar's "token:..." or {"token": ...}; errors don't quote the value."""
    if text.startswith("{"):
        try:
            found: Mapping[str, Any] = json.loads(text)
        except (ValueError, RecursionError):
            found = {}
        if isinstance(found.get("token"), str):
            return str(found["token"])
    elif not text or text.startswith("token:"):
        return text.removeprefix("token:")
    raise AdminError(422, f'{_CREDENTIALS} must be "token:..."')


# -- home clusters -----------------------------------------------------------------


async def list_homes(request: web.Request) -> web.Response:
    """The home clusters of the tenants whose home is another cluster, by tenant."""
    return answer(await ask_catalog(request, m.Homes()))


async def get_home(request: web.Request) -> web.Response:
    """The home cluster of a tenant, by this cluster's record."""
    tenant = check_name("tenant", request.match_info["tenant"])
    home = await ask_catalog(request, m.Home(tenant))
    return answer({"cluster": home["cluster"] if home else actor_system_of(request).config.name})


async def set_home(request: web.Request) -> web.Response:
    """Change the home cluster of a tenant; this cluster's own name makes it the home."""
    home = m.SetHome(request.match_info["tenant"], body_of(request)["cluster"])
    await ask_catalog(request, home)
    return done()


# -- a tenant's metadata -----------------------------------------------------------


async def get_metadata(request: web.Request) -> web.Response:
    """The metadata of a tenant in this cluster: roles, clusters, namespaces, topics, policies."""
    tenant = check_name("tenant", request.match_info["tenant"])
    return answer((await read_tenant(actor_system_of(request), tenant)).as_json())


ROUTES: tuple[Route, ...] = (
    Route(operations.LIST, list_clusters),
    Route(operations.GET, get_cluster),
    Route(operations.CREATE, create_cluster),
    Route(operations.UPDATE, update_cluster),
    Route(operations.DELETE, delete_cluster),
    Route(reads(f"{V2}/homes", Texts), list_homes),
    Route(of_tenants.METADATA, get_metadata),
    Route(of_tenants.HOME, get_home),
    Route(of_tenants.SET_HOME, set_home),
    Route(replace(of_tenants.SET_HOME, method="PUT"), set_home),
)
