"""The schemas of topics in a cluster's data directory, read without the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from velaray.actors.schema_registry.machine import RegistryState, SchemaRegistryMachine
from velaray.client.exceptions import UndecodableMessage
from velaray.client.schema.base import Schema
from velaray.client.topic_schemas import Decoder
from velaray.events.ids import ActorKey, TopicName
from velaray.offline.stored_topics import newest_state, open_data, partitions_of
from velaray.schemas import SchemaInfo
from velaray.wire.schemas import VERSION_BYTES, read_version

if TYPE_CHECKING:
    from velaray.client.blocks import Segment


def stored_registry(
    data_dir: str, topic: TopicName, encryption_keys: str | None = None
) -> RegistryState:
    """All versions of a topic's schema; empty if it never had one.

    Raises `InvalidConfiguration` if the directory holds no cluster, `TopicNotFound`,
    `CorruptJournal`.
    """
    store = open_data(data_dir, encryption_keys)

    async def read() -> RegistryState:
        try:
            incarnation = (await partitions_of(store, topic))[0].topic_incarnation
            key = ActorKey.of_schema_registry(topic.topic, incarnation)
            machine = SchemaRegistryMachine()
            found: RegistryState | None = await newest_state(store, key.text(), machine)
            return machine.initial() if found is None else found
        finally:
            await store.close()

    with asyncio.Runner() as runner:
        return runner.run(read())


def stored_schema(
    data_dir: str, topic: TopicName, encryption_keys: str | None = None
) -> SchemaInfo | None:
    """The newest schema of a topic; None without one. Raises as `stored_registry`."""
    latest = stored_registry(data_dir, topic, encryption_keys).latest
    return None if latest is None else latest.info


class StoredDecoders:
    """Decoders for the messages of one topic, by schema version; ``schema`` is the reader's.

    The registry is read for the first version, and again for a version that it lacked.
    """

    def __init__(
        self,
        data_dir: str,
        topic: TopicName,
        schema: Schema[Any],
        encryption_keys: str | None = None,
    ) -> None:
        self._data_dir = data_dir
        self._encryption_keys = encryption_keys
        self._topic = topic
        self._schema = schema
        self._registry: RegistryState | None = None
        self._known: dict[bytes, Decoder] = {}

    def set(self, segments: Iterable[Segment]) -> None:
        """Set the decoders of messages. Raises as `stored_registry`."""
        for segment in segments:
            info = segment.block.info
            version = info.metadata.schema_version
            if version not in self._known:
                self._known[version] = self._made(version)
            info.decode, info.pairs = self._known[version]

    def _made(self, version: bytes) -> Decoder:
        try:
            return Decoder.made(self._schema, self._writer(version) if version else None)
        except UndecodableMessage as error:
            return Decoder.failing(error.reason)

    def _writer(self, version: bytes) -> SchemaInfo:
        number = read_version(version) if len(version) == VERSION_BYTES else None
        if number is None:
            raise UndecodableMessage(f"a schema version has 8 bytes, not {len(version)}")
        if self._registry is None:
            self._registry = stored_registry(self._data_dir, self._topic, self._encryption_keys)
        found = self._registry.find(number)
        if found is None or found.info is None:
            raise UndecodableMessage(f"its topic has no schema version {number}")
        return found.info
