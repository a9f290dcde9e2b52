"""Maps schema versions of the source to versions of the target."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from velaray.client.exceptions import from_server
from velaray.events.ids import Position, TopicName
from velaray.geo.replication.replicator_settings import CannotReplicate
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.schemas import NO_VERSION


class NoSuchSchema(Exception):
    """The source doesn't know a schema version."""


Find = Callable[[bytes], Awaitable[pb.Schema]]
"""The schema of a version at the source. Raises `NoSuchSchema`, and request errors."""


class SchemaTarget(Protocol):
    """What the translation needs of the target."""

    cluster: str
    """The name of the target's cluster."""

    async def register(
        self, command: pb.CommandGetOrCreateSchema
    ) -> pb.CommandGetOrCreateSchemaResponse:
        """Register a schema there; the answer may be a refusal. Raises `VelarayError`."""
        ...


class Translation:
    """The mapping for one connection to the target. The next connection starts without it."""

    def __init__(self, find: Find, topic: TopicName, target: SchemaTarget) -> None:
        self._find = find
        self._topic = topic
        self._target = target
        self._known = {NO_VERSION: NO_VERSION}

    def get(self, version: bytes) -> bytes | None:
        """The target version of a version; None if it must be looked up."""
        return self._known.get(version)

    async def learn(self, version: bytes, position: Position) -> None:
        """Look up the target version of a version, and register the schema if needed. The entry
        at ``position`` needs it.

        Raises `CannotReplicate` if the target doesn't take the schema, or the source doesn't
        know it; `VelarayError`, `RemoteError`, `Unreachable` if that can't be known now.
        """
        at = f"the entry at {position.ledger_id}:{position.entry_id}"
        try:
            schema = await self._find(version)
        except NoSuchSchema as error:
            raise CannotReplicate(f"{at}: {error}. Skip the entry to continue") from error
        answer = await self._target.register(
            pb.CommandGetOrCreateSchema(topic=str(self._topic), schema=schema)
        )
        if answer.HasField("error_code"):
            refusal = from_server(answer.error_code, answer.error_message)
            kind = type(refusal).__name__
            raise CannotReplicate(
                f"{at} has schema version {int.from_bytes(version)}, which {self._target.cluster} "
                f"refuses: {kind}: {refusal}. "
                "Change the schema or its compatibility strategy there"
            )
        self._known[version] = answer.schema_version
