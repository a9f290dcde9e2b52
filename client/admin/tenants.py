"""Administration of tenants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from annotated_types import MinLen
from typing_extensions import TypedDict

from velaray.client.admin.calls import call
from velaray.client.admin.clusters import LIST as LIST_CLUSTERS
from velaray.client.admin.connection import ModeT, Resource
from velaray.client.admin.operations import V2, AnyObject, Operation, reads

_TENANT = f"{V2}/tenants/{{tenant}}"


class TenantInfo(TypedDict, total=False):
    """A tenant's roles and clusters, in Pulsar's form."""

    adminRoles: list[str]
    allowedClusters: list[str]


class HomeCluster(TypedDict):
    """A tenant's home cluster."""

    cluster: Annotated[str, MinLen(1)]


LIST = reads(f"{V2}/tenants", list[str])
GET = reads(_TENANT, TenantInfo)
CREATE = Operation("PUT", _TENANT, body=TenantInfo)
UPDATE = Operation("POST", _TENANT, body=TenantInfo)
DELETE = Operation("DELETE", _TENANT)
METADATA = reads(f"{_TENANT}/metadata", AnyObject)
HOME = reads(f"{_TENANT}/home", HomeCluster)
SET_HOME = Operation("POST", f"{_TENANT}/home", body=HomeCluster)


class Tenants(Resource[ModeT]):
    """The tenants of the cluster."""

    @call
    async def __call__(self) -> list[str]:
        """Return the names of all tenants."""
        return list(await self._ask(LIST))

    @call
    async def get(self, name: str) -> dict[str, list[str]]:
        """Return a tenant's ``adminRoles`` and ``allowedClusters``."""
        return dict(await self._ask(GET, {"tenant": name}))

    @call
    async def create(
        self,
        name: str,
        *,
        admin_roles: Sequence[str] = (),
        allowed_clusters: Sequence[str] | None = None,
    ) -> None:
        """Create a tenant. Without ``allowed_clusters`` it may use all known clusters."""
        clusters = allowed_clusters
        if clusters is None:
            clusters = await self._ask(LIST_CLUSTERS)
        body = {"adminRoles": list(admin_roles), "allowedClusters": list(clusters)}
        await self._ask(CREATE, {"tenant": name}, body=body)

    @call
    async def update(
        self,
        name: str,
        *,
        admin_roles: Sequence[str] | None = None,
        allowed_clusters: Sequence[str] | None = None,
    ) -> None:
        """Replace a tenant's roles or clusters; None leaves them as they are.

        Raises `Conflict` if the tenant replicates to a cluster that it may not use any more.
        """
        body: dict[str, Sequence[str]] = dict(await self._ask(GET, {"tenant": name}))
        if admin_roles is not None:
            body["adminRoles"] = list(admin_roles)
        if allowed_clusters is not None:
            body["allowedClusters"] = list(allowed_clusters)
        await self._ask(UPDATE, {"tenant": name}, body=body)

    @call
    async def delete(self, name: str) -> None:
        """Delete a tenant. Raises `Conflict` while it has namespaces."""
        await self._ask(DELETE, {"tenant": name})

    @call
    async def metadata(self, name: str) -> dict[str, Any]:
        """Return everything that the cluster stores of a tenant except messages: ``admin_roles``,
        ``allowed_clusters``, ``namespaces`` with their policies and topics."""
        return dict(await self._ask(METADATA, {"tenant": name}))

    @call
    async def home(self, name: str) -> str:
        """Return a tenant's home cluster, as far as this cluster knows. The home cluster serves the
        tenant's clients, also those that ask another cluster."""
        return str((await self._ask(HOME, {"tenant": name}))["cluster"])

    @call
    async def set_home(self, name: str, cluster: str) -> None:
        """Set a tenant's home cluster, which serves its clients from now on. Nothing is moved.

        Raises `NotFound` if there is no such cluster.
        """
        await self._ask(SET_HOME, {"tenant": name}, body={"cluster": cluster})
