"""Administration of namespaces, and of the policies of every level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from velaray.client.admin.connection import Resource
from velaray.client.admin.operations import APPLIED, FORCE, V2, AnyObject, Operation, reads
from velaray.client.admin.paths import force_query, namespace_path, path_of, topic_path

NAMESPACE = f"{V2}/namespaces/{{tenant}}/{{namespace}}"
TOPIC = f"{V2}/persistent/{{tenant}}/{{namespace}}/{{topic}}"

LIST = reads(f"{V2}/namespaces/{{tenant}}", list[str])
GET = reads(NAMESPACE, AnyObject)
CREATE = Operation("PUT", NAMESPACE, body=AnyObject)
DELETE = Operation("DELETE", NAMESPACE, (FORCE,))


@dataclass(frozen=True, slots=True)
class PolicyOperations:
    """The operations of the policies of one level, below the path of a namespace or a topic."""

    base: str

    @property
    def all(self) -> Operation:
        """Answer the policies that are set there, by name."""
        return reads(f"{self.base}/policies", AnyObject, APPLIED)

    @property
    def get(self) -> Operation:
        """Answer one of them."""
        return Operation("GET", self._one, answers={200: Any, 204: None})

    def set(self, method: str = "PUT") -> Operation:
        """Set one of them. PUT and POST do the same."""
        return Operation(method, self._one, body=Any)

    @property
    def remove(self) -> Operation:
        """Remove one of them."""
        return Operation("DELETE", self._one)

    @property
    def _one(self) -> str:
        return f"{self.base}/policies/{{policy}}"


LEVELS = {
    "cluster": PolicyOperations(V2),
    "namespace": PolicyOperations(NAMESPACE),
    "topic": PolicyOperations(TOPIC),
}


def get_policy(base: str, path: str) -> Operation:
    """Read a policy of a namespace or topic by Pulsar's path for it."""
    return Operation("GET", f"{base}/{path}", (APPLIED,), answers={200: Any, 204: None})


def set_policy(base: str, path: str, method: str = "POST") -> Operation:
    """Set such a policy. PUT and POST do the same."""
    return Operation(method, f"{base}/{path}", body=Any)


def remove_policy(base: str, path: str) -> Operation:
    """Remove such a policy."""
    return Operation("DELETE", f"{base}/{path}")


class Namespaces(Resource):
    """The namespaces of tenants."""

    def __call__(self, tenant: str) -> list[str]:
        """Return a tenant's namespaces, as ``tenant/namespace``."""
        return list(self._connection.request("GET", path_of("namespaces", tenant)))

    def create(self, namespace: str) -> None:
        """Create ``tenant/namespace``."""
        self._connection.request("PUT", namespace_path(namespace))

    def delete(self, namespace: str, *, force: bool = False) -> None:
        """Delete ``tenant/namespace``. Raises `Conflict` while it has topics, unless ``force``.

        With ``force`` all its topics are deleted at once, even while clients are connected.
        """
        query = force_query(force)
        self._connection.request("DELETE", namespace_path(namespace), query=query)


class Policies(Resource):
    """The policies of the cluster, of namespaces and of topics."""

    def __call__(self, namespace: str) -> dict[str, Any]:
        """Return the policies that are set on ``tenant/namespace``, in the fields of Pulsar's
        namespace document."""
        return dict(self._connection.request("GET", namespace_path(namespace)))

    def get(self, namespace: str, name: str, *, applied: bool = False) -> Any:
        """Return a policy of ``tenant/namespace``; None if it isn't set there.

        With ``applied`` return the value in effect, whichever level sets it.
        """
        query = {"applied": "true"} if applied else None
        return self._connection.request("GET", namespace_path(namespace, name), query=query)

    def set(self, namespace: str, name: str, value: Any) -> None:
        """Set a policy by its name in Pulsar's REST interface, such as ``retention``."""
        self._connection.request("POST", namespace_path(namespace, name), value)

    def remove(self, namespace: str, name: str) -> None:
        """Remove a policy, so that the value of the wider level applies."""
        self._connection.request("DELETE", namespace_path(namespace, name))

    def get_all(self, where: str, *, applied: bool = False) -> dict[str, Any]:
        """Return the policies that are set on ``where``, by name; with ``applied`` those in effect.

        ``where`` is "cluster", ``tenant/namespace`` or a topic.
        """
        query = {"applied": "true"} if applied else None
        return dict(self._connection.request("GET", _level(where, "policies"), query=query))

    def set_on(self, where: str, name: str, value: Any) -> None:
        """Set a policy of ``where`` (see `get_all`). Running topics apply it at once."""
        self._connection.request("PUT", _level(where, "policies", name), value)

    def remove_from(self, where: str, name: str) -> None:
        """Remove a policy of ``where``, so that the value of the wider level applies."""
        self._connection.request("DELETE", _level(where, "policies", name))


def _level(where: str, *parts: str) -> str:
    if where == "cluster":
        return path_of(*parts)
    is_topic = "://" in where or where.count("/") != 1
    return f"{topic_path(where) if is_topic else namespace_path(where)}/{path_of(*parts)}"
