"""Redis Streams through redis-py; synced always, or every second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import redis
from redis.exceptions import ConnectionError as NotYet

from benchmarks.contract import Done
from benchmarks.install import redis_server
from benchmarks.servers import free_port, running, scratch, wait_until

PIPELINE = 1_000
_BLOCK_MS = 100


class RedisStreams:
    """One server; a topic is a stream, a subscription a consumer group."""

    def __init__(self, sync: str) -> None:
        """``sync`` is ``appendfsync``: always or everysec."""
        self._sync = sync
        self.settings = {
            "server": f'redis-server --save "" --appendonly yes --appendfsync {sync}',
            "client": f"redis-py with hiredis; XADD in pipelines of {PIPELINE}, one outstanding; "
            f"XREADGROUP COUNT {PIPELINE}, one XACK for what it gave",
        }

    def __enter__(self) -> Self:
        server = redis_server()
        with ExitStack() as stack:
            directory = stack.enter_context(scratch("redis"))
            self._port = free_port()
            words = [server.path, "--bind", "127.0.0.1", "--port", str(self._port)]
            words += ["--dir", str(directory), "--save", "", "--appendonly", "yes"]
            words += ["--appendfsync", self._sync]
            self._server = stack.enter_context(running(words, directory, server.environment))
            self._admin = stack.enter_context(redis.Redis(port=self._port))
            wait_until(self._answers, self._server, directory)
            self.settings["version"] = str(self._admin.info("server")["redis_version"])
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _answers(self) -> bool:
        try:
            return bool(self._admin.ping())
        except NotYet:
            return False

    def servers(self) -> Iterable[int]:
        """See `benchmarks.contract.Peer`."""
        return [self._server.pid]

    def prepare(self, topic: str, subscriptions: Sequence[str]) -> None:
        """See `benchmarks.contract.Peer`."""
        for name in subscriptions:
            self._admin.xgroup_create(topic, name, id="$", mkstream=True)

    def remove(self, topic: str) -> None:
        """See `benchmarks.contract.Peer`."""
        self._admin.delete(topic)

    @contextmanager
    def sender(self, topic: str, way: str) -> Iterator[_Sender]:
        """See `benchmarks.contract.Peer`."""
        with redis.Redis(port=self._port) as connection:
            yield _Sender(connection, topic)

    single_sender = sender

    @contextmanager
    def taker(self, topic: str, subscription: str, way: str) -> Iterator[_Taker]:
        """See `benchmarks.contract.Peer`."""
        with redis.Redis(port=self._port) as connection:
            yield _Taker(connection, topic, subscription)


class _Sender:
    def __init__(self, connection: redis.Redis, topic: str) -> None:
        self._redis, self._topic = connection, topic

    def send_many(self, payload: bytes, count: int) -> None:
        self._pipe([payload] * count)

    def wait(self) -> None:
        """Every pipeline returned with its receipts."""

    def send_each(self, payloads: Sequence[bytes], done: Done) -> None:
        if len(payloads) == 1:
            self._redis.xadd(self._topic, {b"v": payloads[0]})
        else:
            self._pipe(payloads)
        for payload in payloads:
            done(payload)

    def _pipe(self, payloads: Sequence[bytes]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for payload in payloads:
            pipeline.xadd(self._topic, {b"v": payload})
        pipeline.execute()


class _Taker:
    def __init__(self, connection: redis.Redis, topic: str, group: str) -> None:
        self._redis, self._topic, self._group = connection, topic, group

    def _read(self, most: int) -> list[Any]:
        found: Any = self._redis.xreadgroup(
            self._group, "one", {self._topic: ">"}, min(most, PIPELINE), _BLOCK_MS
        )
        if not found:
            return []
        ((_, entries),) = found
        self._redis.xack(self._topic, self._group, *(entry_id for entry_id, _ in entries))
        return entries

    def take(self, most: int) -> int:
        return len(self._read(most))

    def take_payloads(self) -> list[bytes]:
        return [fields[b"v"] for _, fields in self._read(PIPELINE)]

    def finish(self) -> None:
        pending = self._redis.xpending(self._topic, self._group)["pending"]
        if pending:
            raise RuntimeError(f"{pending} messages are not acknowledged")
