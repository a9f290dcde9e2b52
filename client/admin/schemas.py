"""Administration of schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Required

from typing_extensions import TypedDict

from velaray.client.admin.connection import Resource
from velaray.client.admin.operations import (
    FORCE,
    V2,
    Operation,
    Parameter,
    Texts,
    Whole,
    flag,
    reads,
)
from velaray.client.admin.paths import local_path, path_of

SCHEMAS = f"{V2}/schemas/{{tenant}}/{{namespace}}/{{topic}}"


class ProposedSchema(TypedDict, total=False):
    """A schema to be registered or checked, in Pulsar's form."""

    type: Required[str]
    schema: str
    properties: Texts


class SchemaVersion(TypedDict):
    """A version of a topic's schema, or its deletion."""

    version: int
    type: str
    timestamp: int
    data: str
    properties: Texts
    deleted: bool
    role: str | None
    strategy: str | None
    predecessor: int | None


class SchemaVersions(TypedDict):
    """Versions of a topic's schema, oldest first."""

    getSchemaResponses: list[SchemaVersion]


class VersionNumber(TypedDict):
    """The number of a version of a schema, or of its deletion."""

    version: int


class Registered(TypedDict):
    """The version of a schema that was registered."""

    version: VersionNumber


class Compatibility(TypedDict):
    """Whether a schema could be registered, and what prevents it."""

    compatibility: bool
    schemaCompatibilityStrategy: str
    problems: list[str]


AS_OF: Parameter[int | None] = Parameter(
    "asOf", Whole, None, "The versions of this time (ms since 1970)."
)
SEQUENCE: Parameter[int | None] = Parameter(
    "sequence", Whole, None, "The versions after this event."
)
POINT_IN_TIME = (AS_OF, SEQUENCE)
DELETED = flag("deleted", "Add the deleted versions and the deletions.")
STRATEGY: Parameter[str | None] = Parameter(
    "strategy", str, None, "Check by this compatibility strategy."
)
EVERY_VERSION = flag("all", "Compare with every version, deleted ones too.")

LIST = reads(f"{SCHEMAS}/schemas", SchemaVersions, DELETED, *POINT_IN_TIME)
GET_LATEST = reads(f"{SCHEMAS}/schema", SchemaVersion, *POINT_IN_TIME)
GET = reads(f"{SCHEMAS}/schema/{{version}}", SchemaVersion)
UPLOAD = Operation("POST", f"{SCHEMAS}/schema", body=ProposedSchema, answers={200: Registered})
CHECK = Operation(
    "POST",
    f"{SCHEMAS}/compatibility",
    (STRATEGY, EVERY_VERSION),
    body=ProposedSchema,
    answers={200: Compatibility},
)
DELETE = Operation("DELETE", f"{SCHEMAS}/schema", (FORCE,), answers={200: VersionNumber})


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
