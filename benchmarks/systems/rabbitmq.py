"""RabbitMQ quorum queues: aio-pika publishes with confirms, pika receives."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import aio_pika
import pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange
from pika.adapters.blocking_connection import BlockingChannel

from benchmarks.contract import Done
from benchmarks.install import rabbitmq_server
from benchmarks.processes import descendants
from benchmarks.servers import free_port, running, scratch, wait_until

PREFETCH = 1_000
_WAIT_S = 0.2
_CALL_WITHIN_S = 120.0
_QUORUM = {"x-queue-type": "quorum"}


class RabbitMq:
    """One node; a topic is a fanout exchange, a subscription a quorum queue bound to it."""

    def __init__(self) -> None:
        self._queues: dict[str, list[str]] = {}
        self.settings = {
            "server": "RabbitMQ, one node, durable quorum queues",
            "client": "publish: aio-pika, persistent, confirms, 1000 awaited together; receive: "
            f"pika, prefetch {PREFETCH}, basic_ack per message",
        }

    def __enter__(self) -> Self:
        server = rabbitmq_server()
        with ExitStack() as stack:
            directory = stack.enter_context(scratch("rabbitmq"))
            self._port = free_port()
            environment = {**server.environment, **_environment(directory, self._port)}
            _run_mapper(["-daemon"], environment)
            stack.callback(_run_mapper, ["-kill"], environment)
            shell = stack.enter_context(running([server.path], directory, environment))
            stack.callback(self._end_node, shell.pid)
            wait_until(self._answers, shell, directory)
            # The node comes before its children, which may bear its name for a moment.
            self._node = descendants(shell.pid, "beam.smp")[0]
            self._loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._loop.run_forever, daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._loop.call_soon_threadsafe, self._loop.stop)
            self._publishing = self._run(_publishing(self._port))
            stack.callback(lambda: self._run(self._publishing.close()))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_WITHIN_S)

    def _connect(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", self._port, heartbeat=0)
        )

    def _answers(self) -> bool:
        try:
            connection = self._connect()
        except pika.exceptions.AMQPConnectionError:
            return False
        properties = connection._impl.server_properties
        self.settings["version"] = str(properties["version"])
        connection.close()
        return True

    def _end_node(self, shell: int) -> None:
        """The script that started the node ends with it."""
        for pid in descendants(shell, "beam.smp")[:1]:
            os.kill(pid, signal.SIGTERM)

    def servers(self) -> Iterable[int]:
        """See `benchmarks.contract.Peer`."""
        return [self._node]

    def prepare(self, topic: str, subscriptions: Sequence[str]) -> None:
        """See `benchmarks.contract.Peer`."""
        connection = self._connect()
        channel = connection.channel()
        channel.exchange_declare(topic, "fanout", durable=True)
        self._queues[topic] = [f"{topic}-{name}" for name in subscriptions]
        for name in subscriptions:
            channel.queue_declare(f"{topic}-{name}", durable=True, arguments=_QUORUM)
            channel.queue_bind(f"{topic}-{name}", topic)
        connection.close()

    def remove(self, topic: str) -> None:
        """See `benchmarks.contract.Peer`."""
        connection = self._connect()
        channel = connection.channel()
        channel.exchange_delete(topic)
        for name in self._queues.pop(topic):
            channel.queue_delete(name)
        connection.close()

    @contextmanager
    def sender(self, topic: str, way: str) -> Iterator[_Sender]:
        """See `benchmarks.contract.Peer`."""
        channel = self._run(self._channel())
        yield _Sender(self, self._run(channel.get_exchange(topic, ensure=False)))
        self._run(channel.close())

    async def _channel(self) -> AbstractChannel:
        """Made and opened in the loop that it's used in."""
        channel = self._publishing.channel(publisher_confirms=True)
        await channel
        return channel

    single_sender = sender

    @contextmanager
    def taker(self, topic: str, subscription: str, way: str) -> Iterator[_Taker]:
        """See `benchmarks.contract.Peer`."""
        connection = self._connect()
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        yield _Taker(channel, f"{topic}-{subscription}")
        if channel.is_open:
            channel.cancel()
            connection.close()


class _Sender:
    def __init__(self, peer: RabbitMq, exchange: AbstractExchange) -> None:
        self._peer, self._exchange = peer, exchange

    def send_many(self, payload: bytes, count: int) -> None:
        self._peer._run(self._publish([payload] * count))

    def wait(self) -> None:
        """Every call returned with its confirms."""

    async def _publish(self, payloads: Sequence[bytes]) -> None:
        await asyncio.gather(*(self._publish_one(payload) for payload in payloads))

    async def _publish_one(self, payload: bytes) -> None:
        message = aio_pika.Message(payload, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await self._exchange.publish(message, routing_key="")

    def send_each(self, payloads: Sequence[bytes], done: Done) -> None:
        async def send(payload: bytes) -> None:
            await self._publish_one(payload)
            done(payload)

        for payload in payloads:
            asyncio.run_coroutine_threadsafe(send(payload), self._peer._loop)


class _Taker:
    def __init__(self, channel: BlockingChannel, queue: str) -> None:
        self._channel = channel
        self._coming = channel.consume(queue, inactivity_timeout=_WAIT_S)

    def _receive(self) -> bytes | None:
        method, _, payload = next(self._coming)
        if method is None or method.delivery_tag is None:
            return None
        self._channel.basic_ack(method.delivery_tag)
        return payload

    def take(self, most: int) -> int:
        for number in range(most):
            if self._receive() is None:
                return number
        return most

    def take_payloads(self) -> list[bytes]:
        payload = self._receive()
        return [] if payload is None else [payload]

    def finish(self) -> None:
        """A channel's commands are handled in order: its closing comes after the acks."""
        self._channel.cancel()
        self._channel.connection.close()


async def _publishing(port: int) -> AbstractConnection:
    """Made in the loop that it's used in."""
    return await aio_pika.connect(f"amqp://127.0.0.1:{port}/")


def _environment(directory: Path, port: int) -> dict[str, str]:
    return {
        "HOME": str(directory),
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "none.conf"),
        "RABBITMQ_CONFIG_FILE": str(directory / "none"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(free_port()),
    }


def _run_mapper(arguments: list[str], environment: dict[str, str]) -> None:
    """Start or end the daemon that maps Erlang's names to ports; it serves this node alone."""
    words = [shutil.which("epmd", path=environment["PATH"]) or "epmd", *arguments]
    subprocess.run(words, env=environment, stdout=subprocess.DEVNULL, check=False)
