"""Administration of tenants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from annotated_types import MinLen
from typing_extensions import TypedDict

from velaray.client.admin.connection import Resource
from velaray.client.admin.operations import V2, AnyObject, Operation, reads
from velaray.client.admin.paths import path_of

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


class Tenants(Resource):
    """The tenants of the cluster."""

    def __call__(self) -> list[str]:
        """Return the names of all tenants."""
        return list(self._connection.request("GET", "tenants"))

    def get(self, name: str) -> dict[str, list[str]]:
        """Return a tenant's ``adminRoles`` and ``allowedClusters``."""
        return dict(self._connection.request("GET", path_of("tenants", name)))

    def create(
        self,
        name: str,
        *,
        admin_roles: Sequence[str] = (),
        allowed_clusters: Sequence[str] | None = None,
    ) -> None:
        """Create a tenant. Without ``allowed_clusters`` it may use all known clusters."""
        clusters = allowed_clusters
        if clusters is None:
            clusters = self._connection.request("GET", "clusters")
        body = {"adminRoles": list(admin_roles), "allowedClusters": list(clusters)}
        self._connection.request("PUT", path_of("tenants", name), body)

    def update(
        self,
        name: str,
        *,
        admin_roles: Sequence[str] | None = None,
        allowed_clusters: Sequence[str] | None = None,
    ) -> None:
        """Replace a tenant's roles or clusters; None leaves them as they are.

        Raises `Conflict` if the tenant replicates to a cluster that it may not use any more.
        """
        body: dict[str, Sequence[str]] = dict(self.get(name))
        if admin_roles is not None:
            body["adminRoles"] = list(admin_roles)
        if allowed_clusters is not None:
            body["allowedClusters"] = list(allowed_clusters)
        self._connection.request("POST", path_of("tenants", name), body)

    def delete(self, name: str) -> None:
        """Delete a tenant. Raises `Conflict` while it has namespaces."""
        self._connection.request("DELETE", path_of("tenants", name))

    def metadata(self, name: str) -> dict[str, Any]:
        """Return everything that the cluster stores of a tenant except messages: ``admin_roles``,
        ``allowed_clusters``, ``namespaces`` with their policies and topics."""
        return dict(self._connection.request("GET", path_of("tenants", name, "metadata")))

    def home(self, name: str) -> str:
        """Return a tenant's home cluster, as far as this cluster knows. The home cluster serves the
        tenant's clients, also those that ask another cluster."""
        return str(self._connection.request("GET", path_of("tenants", name, "home"))["cluster"])

    def set_home(self, name: str, cluster: str) -> None:
        """Set a tenant's home cluster, which serves its clients from now on. Nothing is moved.

        Raises `NotFound` if there is no such cluster.
        """
        self._connection.request("POST", path_of("tenants", name, "home"), {"cluster": cluster})
