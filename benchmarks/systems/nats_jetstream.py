"""NATS JetStream with file storage through nats-py, in one event loop on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import nats
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, RetentionPolicy, StorageType

from benchmarks.contract import Done
from benchmarks.install import nats_server
from benchmarks.servers import free_port, listens, running, scratch, wait_until

FETCH = 500
PENDING = 1_000
_WAIT_S = 0.2
_CALL_WITHIN_S = 120.0
_CONFIG = """
listen: 127.0.0.1:{port}
max_payload: 8MB
jetstream {{
  store_dir: "{directory}"
  max_file_store: 40GB
  {sync}
}}
"""


class NatsJetStream:
    """One server; a topic is a stream with one subject, a subscription a durable consumer."""

    def __init__(self, sync_always: bool) -> None:
        """``sync_always`` syncs before every receipt; else every two minutes, the default."""
        self._sync = "sync_interval: always" if sync_always else ""
        self.settings = {
            "server": "nats-server, JetStream, file storage, "
            + (self._sync or "sync_interval not set (2 min)"),
            "client": f"nats-py; publish_async, {PENDING} pending; pull fetch of {FETCH}, "
            "explicit ack of each message, not confirmed",
        }

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            directory = stack.enter_context(scratch("nats"))
            port = free_port()
            config = directory / "nats.conf"
            config.write_text(_CONFIG.format(port=port, directory=directory, sync=self._sync))
            words = [nats_server(), "-c", str(config)]
            self._server = stack.enter_context(running(words, directory))
            wait_until(lambda: listens(port), self._server, directory)
            self._loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._loop.run_forever, daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._loop.call_soon_threadsafe, self._loop.stop)
            self._nats = self._run(nats.connect(f"nats://127.0.0.1:{port}"))
            stack.callback(lambda: self._run(self._nats.close()))
            self._jetstream = self._nats.jetstream(
                timeout=_CALL_WITHIN_S, publish_async_max_pending=PENDING
            )
            self.settings["version"] = ".".join(
                map(str, _version(self._nats.connected_server_version))
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_WITHIN_S)

    def servers(self) -> Iterable[int]:
        """See `benchmarks.contract.Peer`."""
        return [self._server.pid]

    def prepare(self, topic: str, subscriptions: Sequence[str]) -> None:
        """See `benchmarks.contract.Peer`."""
        self._run(self._prepare(topic, subscriptions))

    async def _prepare(self, topic: str, subscriptions: Sequence[str]) -> None:
        await self._jetstream.add_stream(
            name=topic,
            subjects=[topic],
            storage=StorageType.FILE,
            retention=RetentionPolicy.LIMITS,
        )
        for name in subscriptions:
            config = ConsumerConfig(
                durable_name=name,
                ack_policy=AckPolicy.EXPLICIT,
                deliver_policy=DeliverPolicy.ALL,
                max_ack_pending=20_000,
            )
            await self._jetstream.add_consumer(topic, config)

    def remove(self, topic: str) -> None:
        """See `benchmarks.contract.Peer`."""
        self._run(self._jetstream.delete_stream(topic))

    @contextmanager
    def sender(self, topic: str, way: str) -> Iterator[_Sender]:
        """See `benchmarks.contract.Peer`."""
        yield _Sender(self, topic)

    single_sender = sender

    @contextmanager
    def taker(self, topic: str, subscription: str, way: str) -> Iterator[_Taker]:
        """See `benchmarks.contract.Peer`."""
        yield _Taker(self, topic, subscription)


def _version(found: Any) -> tuple[int, int, int]:
    return found.major, found.minor, found.patch


class _Sender:
    def __init__(self, peer: NatsJetStream, topic: str) -> None:
        self._peer, self._topic = peer, topic
        self._jetstream = peer._jetstream

    def send_many(self, payload: bytes, count: int) -> None:
        self._peer._run(self._publish(payload, count))

    async def _publish(self, payload: bytes, count: int) -> None:
        for _ in range(count):
            await self._jetstream.publish_async(self._topic, payload)

    def wait(self) -> None:
        self._peer._run(self._jetstream.publish_async_completed())

    def send_each(self, payloads: Sequence[bytes], done: Done) -> None:
        asyncio.run_coroutine_threadsafe(self._send_each(payloads, done), self._peer._loop)

    async def _send_each(self, payloads: Sequence[bytes], done: Done) -> None:
        for payload in payloads:
            receipt = await self._jetstream.publish_async(self._topic, payload)
            receipt.add_done_callback(lambda _, payload=payload: done(payload))


class _Taker:
    def __init__(self, peer: NatsJetStream, topic: str, subscription: str) -> None:
        self._peer = peer
        self._pull = peer._run(
            peer._jetstream.pull_subscribe_bind(durable=subscription, stream=topic)
        )

    async def _fetch(self, most: int) -> list[Msg]:
        try:
            found: list[Msg] = await self._pull.fetch(min(most, FETCH), timeout=_WAIT_S)
        except TimeoutError:  # what the client raises is one, and sometimes the loop's own comes
            return []
        for message in found:
            await message.ack()
        return found

    def take(self, most: int) -> int:
        return len(self._peer._run(self._fetch(most)))

    def take_payloads(self) -> list[bytes]:
        return [message.data for message in self._peer._run(self._fetch(FETCH))]

    def finish(self) -> None:
        self._peer._run(self._peer._nats.flush())
