"""The schema versions of one producer's messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from velaray.client.core import Core
from velaray.client.exceptions import VelarayError
from velaray.client.retry import TRANSIENT
from velaray.client.topic_schemas import MOST_KNOWN, Recent
from velaray.schemas import SchemaInfo
from velaray.schemas.validation import UNSTORED
from velaray.wire.schemas import NO_VERSION


class ProducerSchemas:
    """Versions of the producer's own schema and of the schemas of single messages.

    Each cluster numbers its own schemas: `leave_cluster` discards the versions.
    """

    def __init__(self, core: Core, topic: str, own: SchemaInfo | None) -> None:
        self.own = own
        self.own_version = NO_VERSION
        self._core = core
        self._topic = topic
        self._versions: Recent[SchemaInfo, bytes] = Recent(MOST_KNOWN)

    def version_of(self, schema: SchemaInfo | None) -> bytes | None:
        """The version of a message's schema (None: the producer's); None if it is unknown."""
        if schema is None:
            return self.own_version
        return NO_VERSION if schema.type in UNSTORED else self._versions.get(schema)

    def learned(self, schema: SchemaInfo, version: bytes) -> None:
        """Store the version of a message's schema."""
        self._versions.put(schema, version)

    def leave_cluster(self) -> None:
        """Discard the versions of single messages' schemas."""
        self._versions = Recent(MOST_KNOWN)

    async def ask(
        self,
        schemas: Iterable[SchemaInfo | None],
        refused: Callable[[SchemaInfo, VelarayError], None],
    ) -> dict[SchemaInfo, bytes]:
        """Return the versions of these schemas, except the producer's own, in the client's cluster.

        ``refused`` is called with each schema that the cluster refuses. Raises `TRANSIENT` errors.
        """
        versions = {}
        for schema in filter(None, set(schemas) - {self.own}):
            try:
                versions[schema] = await self._core.schemas.version_of(self._topic, schema)
            except TRANSIENT:
                raise
            except VelarayError as error:
                refused(schema, error)
        return versions
