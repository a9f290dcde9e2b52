"""Administration of clusters and of replication between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import TypedDict

from velaray.client.admin.calls import call
from velaray.client.admin.connection import ModeT, Resource
from velaray.client.admin.operations import (
    TEXT,
    V2,
    V3,
    AnyObject,
    Operation,
    Parameter,
    Query,
    reads,
)

_CLUSTERS = f"{V2}/clusters"
_CLUSTER = f"{_CLUSTERS}/{{cluster}}"
_REPLICATION = f"{V3}/replication"


class ClusterData(TypedDict, total=False):
    """A cluster, in Pulsar's form. Fields of Pulsar's that have no effect here are ignored."""

    serviceUrl: str
    serviceUrlTls: str
    brokerServiceUrl: str
    brokerServiceUrlTls: str
    authenticationPlugin: str
    authenticationParameters: str
    progress: str


class ClusterDetails(TypedDict):
    """A cluster as this one knows it."""

    serviceUrl: str
    serviceUrlTls: str
    brokerServiceUrl: str
    brokerServiceUrlTls: str
    progress: str
    hasToken: bool
    local: bool
    replicationKeys: list[str]


class IncompleteTopics(TypedDict):
    """Topics, and another cluster that has sent entries to them."""

    cluster: str
    topics: list[str]


OF_TOPIC: Parameter[str | None] = Parameter(
    "topic", str, None, "Only the replicators of this topic."
)
OF_NAMESPACE: Parameter[str | None] = Parameter(
    "namespace", str, None, "Only the running partitions of this tenant/namespace."
)

HEALTH = Operation("GET", f"{V2}/brokers/health", answers={200: str}, content=TEXT)
LIST = reads(_CLUSTERS, list[str])
GET = reads(_CLUSTER, ClusterDetails)
CREATE = Operation("PUT", _CLUSTER, body=ClusterData)
UPDATE = Operation("POST", _CLUSTER, body=ClusterData)
DELETE = Operation("DELETE", _CLUSTER)
REPLICATION = reads(_REPLICATION, list[AnyObject], OF_TOPIC, OF_NAMESPACE)
GIVE_UP = Operation(
    "POST", f"{_REPLICATION}/give-up", body=IncompleteTopics, answers={200: list[AnyObject]}
)


class Clusters(Resource[ModeT]):
    """The known clusters."""

    @call
    async def __call__(self) -> dict[str, dict[str, Any]]:
        """Return the details of every known cluster, by name; see `get`."""
        names = await self._ask(LIST)
        return {name: dict(await self._ask(GET, {"cluster": name})) for name in names}

    @call
    async def health(self) -> None:
        """Return if the cluster answers; otherwise raise `AdminError`."""
        await self._ask(HEALTH)

    @call
    async def names(self) -> list[str]:
        """Return the names of all known clusters."""
        return list(await self._ask(LIST))

    @call
    async def get(self, name: str) -> dict[str, Any]:
        """Return a cluster's ``serviceUrl`` (admin) and ``brokerServiceUrl``, both also by TLS
        (``serviceUrlTls``, ``brokerServiceUrlTls``; "": none), whether it is the
        ``local`` one, whether this one ``hasToken`` for it, its ``progress`` (see `create`), and
        the names of the files in ``replicationKeys``, which this one shares with it alone."""
        return dict(await self._ask(GET, {"cluster": name}))

    @call
    async def create(
        self,
        name: str,
        *,
        service_url: str = "",
        admin_url: str = "",
        service_url_tls: str = "",
        admin_url_tls: str = "",
        token: str | None = None,
        progress: str = "exact",
    ) -> None:
        """Make another cluster known. Raises `Conflict` if it is known.

        A service URL and an admin URL are needed. Those by TLS (``pulsar+ssl``, ``https``) are used
        if they are given.

        ``token`` is what this cluster presents to the other one; it is never shown again. Use
        ``progress`` "snapshots" for a cluster that knows only Pulsar's snapshots of subscriptions.
        """
        urls = _urls(service_url, admin_url, service_url_tls, admin_url_tls)
        body = {name: url for name, url in urls.items() if url} | {"progress": progress}
        await self._ask(CREATE, {"cluster": name}, body=body | _credentials(token))

    @call
    async def update(
        self,
        name: str,
        *,
        service_url: str | None = None,
        admin_url: str | None = None,
        service_url_tls: str | None = None,
        admin_url_tls: str | None = None,
        token: str | None = None,
        progress: str | None = None,
    ) -> None:
        """Change the given details of another cluster. An empty ``token`` or TLS URL removes it."""
        urls = _urls(service_url, admin_url, service_url_tls, admin_url_tls)
        named = urls | {"progress": progress}
        body = {field: value for field, value in named.items() if value is not None}
        await self._ask(UPDATE, {"cluster": name}, body=body | _credentials(token))

    @call
    async def delete(self, name: str) -> None:
        """Forget another cluster. Raises `PreconditionFailed` while a tenant may use it, a policy
        names it, or it is the home cluster of a tenant."""
        await self._ask(DELETE, {"cluster": name})

    @call
    async def replication(
        self, topic: str | None = None, namespace: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the replicators of a topic, or those of the running partitions of a namespace or
        of the whole cluster: ``state``, ``reason``, ``backlog``, ``lag_ms``, ``progress_lag_ms``
        and more."""
        query: Query = {OF_TOPIC: topic, OF_NAMESPACE: namespace}
        return list(await self._ask(REPLICATION, query=query))

    @call
    async def give_up(self, cluster: str, topics: Sequence[str]) -> list[dict[str, Any]]:
        """Hide, permanently, the entries of another cluster's transactions that came to these
        topics only in part. Return by partition how many were ``given_up`` and ``released``."""
        body = {"cluster": cluster, "topics": list(topics)}
        return list(await self._ask(GIVE_UP, body=body))


def _urls(
    service_url: str | None,
    admin_url: str | None,
    service_url_tls: str | None,
    admin_url_tls: str | None,
) -> dict[str, str | None]:
    """Return the fields of the URLs."""
    return {
        "brokerServiceUrl": service_url,
        "serviceUrl": admin_url,
        "brokerServiceUrlTls": service_url_tls,
        "serviceUrlTls": admin_url_tls,
    }


def _credentials(token: str | None) -> dict[str, str]:
    """Return the field for a token: "" removes it, None leaves it as it is."""
    if token is None:
        return {}
    return {"authenticationParameters": f"token:{token}" if token else ""}
