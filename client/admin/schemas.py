"""Administration of schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Required

from typing_extensions import TypedDict

from velaray.client.admin.calls import call
from velaray.client.admin.connection import ModeT, Resource
from velaray.client.admin.operations import (
    FORCE,
    V2,
    Operation,
    Parameter,
    Query,
    Texts,
    Whole,
    flag,
    reads,
)
from velaray.client.admin.paths import of_topic

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


class Incompatibility(TypedDict):
    """A reason why a schema can't be registered."""

    version: int
    reads: bool
    path: str
    text: str
    message: str


class Compatibility(TypedDict):
    """Whether a schema could be registered, and what prevents it."""

    compatibility: bool
    schemaCompatibilityStrategy: str
    problems: list[Incompatibility]


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


class Schemas(Resource[ModeT]):
    """The schemas of topics."""

    @call
    async def __call__(
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
        query: Query = {DELETED: deleted, AS_OF: as_of_ms, SEQUENCE: sequence}
        return list((await self._ask(LIST, of_topic(topic), query))["getSchemaResponses"])

    @call
    async def get(self, topic: str, version: int | None = None) -> dict[str, Any]:
        """Return a version of a topic's schema, deleted or not; None: the latest that isn't.

        Raises `NotFound` if it doesn't exist.
        """
        if version is None:
            return dict(await self._ask(GET_LATEST, of_topic(topic)))
        return dict(await self._ask(GET, {**of_topic(topic), "version": version}))

    @call
    async def upload(
        self, topic: str, kind: str, schema: str = "", properties: Mapping[str, str] | None = None
    ) -> int:
        """Register a schema of this type (AVRO, JSON, ...); return its version.

        Raises `Conflict` if it isn't compatible, `Invalid` if it isn't a schema.
        """
        body = _body(kind, schema, properties)
        found = await self._ask(UPLOAD, of_topic(topic), body=body)
        return int(found["version"]["version"])

    @call
    async def check(
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
        query: Query = {EVERY_VERSION: every_version, STRATEGY: strategy}
        body = _body(kind, schema, properties)
        return dict(await self._ask(CHECK, of_topic(topic), query, body))

    @call
    async def delete(self, topic: str, *, force: bool = False) -> int:
        """Delete all versions of a topic's schema; return the number of the deletion.

        Published messages can still be decoded, also after ``force``, which is only recorded.
        Raises `NotFound` if all versions are deleted.
        """
        found = await self._ask(DELETE, of_topic(topic), {FORCE: force})
        return int(found["version"])


def _body(kind: str, schema: str, given: Mapping[str, str] | None) -> dict[str, Any]:
    return {"type": kind, "schema": schema, "properties": dict(given or {})}
