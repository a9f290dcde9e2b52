"""Caches of topics' schemas: schemas by version, and versions by schema."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from velaray.client.exceptions import TopicNotFound, UndecodableMessage, VelarayError, from_server
from velaray.client.lookup import Lookup
from velaray.client.message import EntryInfo
from velaray.client.retry import TRANSIENT
from velaray.client.schema.base import Decode, Schema
from velaray.events.ids import TopicName
from velaray.schemas import SchemaInfo
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.schemas import NO_VERSION, VERSION_BYTES, from_proto, to_proto

MOST_KNOWN = 1000
"""Limit of a client's cached schemas, and of a consumer's cached decoders.

The most recently used ones stay.
"""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A cache of the most recently used values."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return the value of ``key``; None if it isn't cached."""
        found = self._values.get(key)
        if found is not None:
            self._values.move_to_end(key)
        return found

    def put(self, key: K, value: V) -> None:
        """Add a value."""
        self._values[key] = value
        if len(self._values) > self._limit:
            self._values.popitem(last=False)

    def forget(self, key: K, value: V) -> None:
        """Remove this value, unless it was replaced by another one."""
        if self._values.get(key) is value:
            del self._values[key]


class Requester(Protocol):
    """What `Schemas` needs from the client."""

    lookup: Lookup
    attempt_timeout: float

    async def retrying(self, what: str, attempt: Callable[[], Awaitable[V]]) -> V:
        """Return the result of the first successful attempt."""

    def spawn(self, work: Coroutine[Any, Any, V]) -> asyncio.Task[V]:
        """Run ``work`` on the client's loop."""


class Schemas:
    """The schemas of one client's topics; concurrent requests for the same schema are shared."""

    def __init__(self, core: Requester) -> None:
        self._core = core
        self._known: Recent[tuple[str, Hashable], asyncio.Task[Any]] = Recent(MOST_KNOWN)

    async def at(self, topic: str, version: bytes) -> SchemaInfo:
        """Return the schema of this version. Raises `TopicNotFound` if there is none."""
        what = f"asking for a schema of {topic}"
        found: SchemaInfo = await self._once(
            (_whole(topic), version), what, lambda: self._get(topic, version)
        )
        return found

    async def latest(self, topic: str) -> SchemaInfo | None:
        """Return the newest schema as of now; None if the topic has none."""
        try:
            return await self._core.retrying(
                f"asking for the schema of {topic}", lambda: self._get(topic, NO_VERSION)
            )
        except TopicNotFound:
            return None

    async def version_of(self, topic: str, schema: SchemaInfo) -> bytes:
        """Return the version of a schema; register the schema if the topic's rules allow it.

        Raises `IncompatibleSchema` if they don't.
        """
        what = f"registering a schema of {topic}"
        version: bytes = await self._once(
            (_whole(topic), schema), what, lambda: self._put(topic, schema)
        )
        return version

    async def _once(
        self, key: tuple[str, Hashable], what: str, ask: Callable[[], Awaitable[Any]]
    ) -> Any:
        asked = self._known.get(key)
        if asked is None:
            asked = self._core.spawn(self._core.retrying(what, ask))
            self._known.put(key, asked)
        try:
            return await asyncio.shield(asked)
        except VelarayError:
            self._known.forget(key, asked)
            raise

    async def _get(self, topic: str, version: bytes) -> SchemaInfo:
        request = pb.CommandGetSchema(topic=topic)
        if version:
            request.schema_version = version
        return from_proto((await self._answer(topic, request)).schema)

    async def _put(self, topic: str, schema: SchemaInfo) -> bytes:
        request = pb.CommandGetOrCreateSchema(topic=topic, schema=to_proto(schema))
        version: bytes = (await self._answer(topic, request)).schema_version
        return version

    async def _answer(self, topic: str, request: Any) -> Any:
        connection = await self._core.lookup.server_of(topic)
        answer = await connection.request(request, self._core.attempt_timeout)
        if answer.HasField("error_code"):
            raise from_server(answer.error_code, answer.error_message)
        return answer


def _whole(topic: str) -> str:
    return str(TopicName.parse(topic).topic)


class Decoder(NamedTuple):
    """Decodes messages of one schema; ``pairs``: with the message's key."""

    decode: Decode
    pairs: bool

    @staticmethod
    def made(schema: Schema[Any], writer: SchemaInfo | None) -> Decoder:
        """Make the decoder of ``schema`` for messages written with ``writer``."""
        try:
            return Decoder(schema.decoder(writer), schema.has_separate_key(writer))
        except UndecodableMessage as error:
            return Decoder.failing(error.reason)

    @staticmethod
    def failing(reason: str) -> Decoder:
        """Make a decoder that raises `UndecodableMessage` with this reason for every payload."""

        def decode(_: object, __: object) -> Any:
            raise UndecodableMessage(reason)

        return Decoder(decode, pairs=False)


class Decoders:
    """The decoders for the entries of one topic partition, by schema version.

    On the loop's thread. A schema that doesn't depend on the writer's schema has one decoder for
    all versions.
    """

    def __init__(self, schemas: Schemas, topic: str, schema: Schema[Any]) -> None:
        self._schemas = schemas
        self._topic = topic
        self._schema = schema
        self._unstamped = Decoder.made(schema, None)
        self._known: Recent[bytes, Decoder] = Recent(MOST_KNOWN)

    def set(self, info: EntryInfo) -> bool:
        """Set the decoder of ``info``; False if `learn` must find it first."""
        version = info.metadata.schema_version
        found: Decoder | None = self._unstamped
        if version and self._schema.by_writer:
            found = self._known.get(version)
        if found is None:
            return False
        info.decode, info.pairs = found
        return True

    async def learn(self, version: bytes) -> None:
        """Find the decoder for entries of ``version``.

        Raises `TRANSIENT` errors. After any other error entries of that version are undecodable.
        """
        try:
            if len(version) != VERSION_BYTES:
                raise UndecodableMessage(f"a schema version has 8 bytes, not {len(version)}")
            found = Decoder.made(self._schema, await self._schemas.at(self._topic, version))
        except TRANSIENT:
            raise
        except VelarayError as error:
            number = int.from_bytes(version, "big")
            found = Decoder.failing(
                f"schema version {number} of its topic can't be fetched: {error}"
            )
        self._known.put(version, found)
