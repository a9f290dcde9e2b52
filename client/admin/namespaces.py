"""Administration of namespaces, and of the policies of every level."""

from __future__ import annotations

from typing import Any

from velaray.client.admin.connection import Resource
from velaray.client.admin.paths import force_query, namespace_path, path_of, topic_path


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
