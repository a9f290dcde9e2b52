"""Clients with schemas: they register, publish, consume and delete, over the wire and over HTTP.

Nothing is judged here: `tests.sim.schema_checkers` does, by the history and the journals.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from tests.official.raw import RawClient
from tests.sim.administration import PREFIX
from tests.sim.clients import Script
from tests.sim.cluster import ADMIN_PORT, SERVICE_PORT
from tests.sim.http import NoAnswer, ask
from tests.sim.trimming import make_plan
from tests.sim.workload import Shared
from tests.topology.schema_wire import AUTO, TEXT, Peer, Refused, avro
from velaray.aio import Client
from velaray.schemas import SchemaInfo, SchemaType
from velaray.wire import pulsar_pb2 as pb

CHANCE = 0.25
TOPIC, ACTIVE = "public/default/sc0", "public/default/sc1"
SCHEMAS = (
    *(avro("f1"), avro("f1", "f2?"), avro("f1", "f2"), avro("f1", "f3?"), avro("f1", "f2?", "f3?")),
    TEXT,
)
CONSUMERS = "of a consumer"
"""What consumers call their schemas."""
_STRATEGIES = ("FULL", "FULL", "ALWAYS_COMPATIBLE", "BACKWARD_TRANSITIVE", "FORWARD")
_FAILED = (OSError, TimeoutError, AssertionError)
"""The connection broke, or there is no answer."""


def has_schemas(seed: int) -> bool:
    """Whether clients of this seed use schemas."""
    return Random(f"{seed}/schemas?").random() < CHANCE


def make_schema_cast(seed: int, shared: Shared) -> dict[str, Script]:
    """The clients that use schemas, by name; most seeds have none."""
    if not has_schemas(seed):
        return {}
    rng = Random(f"{seed}/schemas")
    cast: dict[str, Script] = {"sc-policy": _Strategist(rng.choice(_STRATEGIES), shared)}
    for number in range(rng.randint(2, 5)):
        cast[f"sc-{number}"] = SchemaScript(f"sc-{number}", shared, Random(rng.random()))
    if make_plan(seed) is None:  # else what makes the topic active may expire
        cast["sc-active"] = ActiveScript(shared, Random(rng.random()))
    return cast


async def _connect(topic: str) -> Peer:
    """A connection to the topic's partition, as a client finds it. Raises `_FAILED`."""
    proxy = await RawClient.connect("127.0.0.1", SERVICE_PORT)
    proxy.send(pb.CommandLookupTopic(topic=f"persistent://{topic}", request_id=1))
    answer = await proxy.next(pb.CommandLookupTopicResponse)
    proxy.close()
    if answer.response != pb.CommandLookupTopicResponse.Connect:
        raise ConnectionError(answer.message)
    host, port = answer.brokerServiceUrl.removeprefix("pulsar://").split(":")
    return Peer(await RawClient.connect(host, int(port)), f"persistent://{topic}")


class _Strategist:
    """Sets the strategy of the topic, once."""

    def __init__(self, strategy: str, shared: Shared) -> None:
        self._strategy = strategy
        self._shared = shared

    async def run(self, client: Client) -> None:
        """Until it's answered, or the storm is over."""
        while not self._shared.draining.is_set():
            try:
                await ask(ADMIN_PORT, "PUT", f"{PREFIX}/persistent/{TOPIC}", {})
                path = f"{PREFIX}/persistent/{TOPIC}/schemaCompatibilityStrategy"
                status, _ = await ask(ADMIN_PORT, "PUT", path, self._strategy)
                if status < 300:
                    return
            except NoAnswer:
                pass
            await asyncio.sleep(1.0)


class SchemaScript:
    """Registers schemas, publishes under them, consumes, deletes them all now and then."""

    def __init__(self, name: str, shared: Shared, rng: Random) -> None:
        self._name = name
        self._shared = shared
        self._rng = rng
        self._sent = 0
        self._peer: Peer | None = None

    async def run(self, client: Client) -> None:
        """Until the storm is over."""
        self._peer = None
        while not self._shared.draining.is_set():
            await asyncio.sleep(self._rng.random())
            number = self._rng.randrange(len(SCHEMAS))
            deed = self._rng.choices(
                [self._publish, self._upload, self._consume, self._delete], [10, 3, 3, 1]
            )[0]
            begun = self._shared.history.now()
            try:
                await deed(number, begun)
            except Refused as error:
                note = {"who": self._name, "schema": number, "error": str(error)}
                self._shared.history.add("schema refused", **note)
            except _FAILED as error:
                self._peer = None
                self._shared.history.add("schema failed", who=self._name, error=repr(error))
        if self._peer is not None:
            self._peer.raw.close()

    async def _connected(self) -> Peer:
        """Connections are kept for a while: what the partition remembers counts."""
        if self._peer is None or self._rng.random() < 0.2:
            if self._peer is not None:
                self._peer.raw.close()
            self._peer = await _connect(TOPIC)
        return self._peer

    async def _publish(self, number: int, begun: float) -> None:
        peer = await self._connected()
        self._sent += 1
        payload = f"{number}/{self._name}/{self._sent}".encode()
        version = await peer.produce(SCHEMAS[number], payload)
        self._registered(number, version, begun)

    async def _upload(self, number: int, begun: float) -> None:
        info = SCHEMAS[number]
        body = {"type": str(info.type), "schema": info.data.decode()}
        status, answer = await ask(ADMIN_PORT, "POST", f"{PREFIX}/schemas/{TOPIC}/schema", body)
        if status == 200:
            self._registered(number, answer["version"]["version"], begun)

    def _registered(self, number: int, version: int | None, begun: float) -> None:
        note = {"who": self._name, "schema": number, "version": version, "begun": begun}
        self._shared.history.add("schema registered", **note)

    async def _consume(self, number: int, begun: float) -> None:
        peer = await self._connected()
        known = SCHEMAS[number]
        info = AUTO if self._rng.random() < 0.3 else SchemaInfo(known.type, CONSUMERS, known.data)
        await peer.consume(info, "xschema")

    async def _delete(self, number: int, begun: float) -> None:
        forced = self._rng.choice(["true", "false"])
        path = f"{PREFIX}/schemas/{TOPIC}/schema?force={forced}"
        status, answer = await ask(ADMIN_PORT, "DELETE", path)
        if status == 200:
            version = answer["version"]
            self._shared.history.add("schema deleted", who=self._name, version=version)


class ActiveScript:
    """Stores something without a schema; then consumers come that have one."""

    def __init__(self, shared: Shared, rng: Random) -> None:
        self._shared = shared
        self._rng = rng
        self._active = False

    async def run(self, client: Client) -> None:
        """Until the storm is over."""
        while not self._shared.draining.is_set():
            await asyncio.sleep(self._rng.random() * 2)
            try:
                await self._once()
            except Refused:
                pass  # as it should be
            except _FAILED as error:
                self._shared.history.add("schema failed", who="sc-active", error=repr(error))

    async def _once(self) -> None:
        peer = await _connect(ACTIVE)
        try:
            if not self._active:
                await peer.consume(None, "xkept")
                await peer.produce(None, b"without")
                self._active = True
                self._shared.history.add("schema-less topic is active")
            info: Any = SchemaInfo(SchemaType.STRING, CONSUMERS)
            await peer.consume(info, "xtyped")
            self._shared.history.add("schema consumer came to an active topic")
        finally:
            peer.raw.close()
