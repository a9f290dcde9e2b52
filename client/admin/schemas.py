"""Administration of schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from velaray.client.admin.connection import Resource
from velaray.client.admin.paths import local_path, path_of


class Schemas(Resource):
    """The schemas of topics."""

    def __call__(
        self,
        topic: str,
        *,
        deleted: bool = False,
        as_of_ms: int | None = None,
        sequence: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return the versions of a topic's schema, oldest first; with ``deleted`` also deleted
        versions and the deletions.

        Give a time (milliseconds since 1970) or an event of the registry's journal to get the
        versions of that point. Raises `NotFound` or `AdminError` if the history doesn't reach back
        to it.
        """
        query = {"deleted": "true" if deleted else "false"}
        if as_of_ms is not None:
            query["asOf"] = str(as_of_ms)
        if sequence is not None:
            query["sequence"] = str(sequence)
        found = self._connection.request("GET", _path(topic, "schemas"), query=query)
        return list(found["getSchemaResponses"])

    def get(self, topic: str, version: int | None = None) -> dict[str, Any]:
        """Return a version of a topic's schema, deleted or not; None: the latest that isn't.

        Raises `NotFound` if it doesn't exist.
        """
        parts = ("schema",) if version is None else ("schema", str(version))
        return dict(self._connection.request("GET", _path(topic, *parts)))

    def upload(
        self, topic: str, kind: str, schema: str = "", properties: Mapping[str, str] | None = None
    ) -> int:
        """Register a schema of this type (AVRO, JSON, ...); return its version.

        Raises `Conflict` if it isn't compatible, `Invalid` if it isn't a schema.
        """
        body = _body(kind, schema, properties)
        found = self._connection.request("POST", _path(topic, "schema"), body)
        return int(found["version"]["version"])

    def check(
        self,
        topic: str,
        kind: str,
        schema: str = "",
        properties: Mapping[str, str] | None = None,
        *,
        strategy: str | None = None,
        every_version: bool = False,
    ) -> dict[str, Any]:
        """Return whether a schema could be registered (``compatibility``), and the ``problems``.

        ``strategy`` replaces the topic's; with ``every_version`` the schema is compared with all
        versions, deleted ones too. Nothing is changed. Raises `Invalid`.
        """
        query = {"all": "true" if every_version else "false"}
        if strategy is not None:
            query["strategy"] = strategy
        body = _body(kind, schema, properties)
        return dict(self._connection.request("POST", _path(topic, "compatibility"), body, query))

    def delete(self, topic: str, *, force: bool = False) -> int:
        """Delete all versions of a topic's schema; return the number of the deletion.

        Published messages can still be decoded, also after ``force``, which is only recorded.
        Raises `NotFound` if all versions are deleted.
        """
        query = {"force": "true" if force else "false"}
        found = self._connection.request("DELETE", _path(topic, "schema"), query=query)
        return int(found["version"])


def _path(topic: str, *parts: str) -> str:
    return f"schemas/{local_path(topic)}/{path_of(*parts)}"


def _body(kind: str, schema: str, given: Mapping[str, str] | None) -> dict[str, Any]:
    return {"type": kind, "schema": schema, "properties": dict(given or {})}
