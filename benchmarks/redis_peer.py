"""Redis Streams, synced always, through redis-py; its server runs within the benchmark."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import redis
from redis.exceptions import ConnectionError as NotYet

STREAM = "bench"
GROUP = "bench"
PIPELINE = 1_000
START_TRIES = 200
_TRY_EVERY_S = 0.025
_BLOCK_MS = 100


def redis_absence() -> str | None:
    """Why Redis can't be measured here; None if it can."""
    if shutil.which("redis-server") is None:
        return "redis is left out: there is no redis-server on the PATH"
    return None


class RedisPeer:
    """One stream with one consumer group, on loopback, ended by its process id."""

    name = "redis"
    settings: ClassVar[dict[str, str]] = {
        "redis": 'redis-server --save "" --appendonly yes --appendfsync always, one stream',
        "redis client": f"redis-py with hiredis; XADD in pipelines of {PIPELINE}, one "
        f"outstanding, batched or not; XREADGROUP COUNT {PIPELINE} and one XACK for what it gave",
    }

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            directory = Path(tempfile.mkdtemp(prefix="redis-bench-"))
            stack.callback(shutil.rmtree, directory)
            self._port = _free_port()
            self._server = stack.enter_context(_server(directory, self._port))
            self._redis = stack.enter_context(_connected(self._port))
            self._redis.xgroup_create(STREAM, GROUP, id="$", mkstream=True)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def servers(self) -> Iterable[int]:
        """The one server process."""
        return [self._server.pid]

    def publish(self, payload: bytes, seconds: float, batched: bool) -> int:
        """See `benchmarks.peers.Peer`. Batched or not is the same here."""
        sent = 0
        over = threading.Event()
        threading.Timer(seconds, over.set).start()
        while not over.is_set():
            pipeline = self._redis.pipeline(transaction=False)
            for _ in range(PIPELINE):
                pipeline.xadd(STREAM, {b"v": payload})
            sent += len(pipeline.execute())
        return sent

    def drain(self, count: int) -> None:
        """See `benchmarks.peers.Peer`."""
        done = 0
        while done < count:
            done += len(_take(self._redis, PIPELINE))
        pending = self._redis.xpending(STREAM, GROUP)["pending"]
        if pending or done != count:
            raise RuntimeError(f"{done} of {count} came, {pending} are not acknowledged")

    @contextmanager
    def latency(self, on_message: Callable[[bytes], None]) -> Iterator[_Latency]:
        """See `benchmarks.peers.Peer`."""
        over = threading.Event()

        def receive() -> None:
            with redis.Redis(port=self._port) as connection:
                while not over.is_set():
                    for payload in _take(connection, PIPELINE):
                        on_message(payload)

        receiver = threading.Thread(target=receive)
        receiver.start()
        yield _Latency(self._redis)
        over.set()
        receiver.join()


class _Latency:
    def __init__(self, connection: redis.Redis) -> None:
        self._redis = connection

    def send(self, payload: bytes, on_receipt: Callable[[], None]) -> None:
        """See `benchmarks.peers.Latency`."""
        self._redis.xadd(STREAM, {b"v": payload})
        on_receipt()


def _take(connection: redis.Redis, count: int) -> list[bytes]:
    """Read what is new for the group, up to ``count``, and acknowledge it."""
    found: Any = connection.xreadgroup(GROUP, "one", {STREAM: ">"}, count, _BLOCK_MS)
    if not found:
        return []
    ((_, entries),) = found
    connection.xack(STREAM, GROUP, *(entry_id for entry_id, _ in entries))
    return [fields[b"v"] for _, fields in entries]


@contextmanager
def _server(directory: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    settings = {
        "--bind": "127.0.0.1",
        "--port": str(port),
        "--dir": str(directory),
        "--save": "",
        "--appendonly": "yes",
        "--appendfsync": "always",
    }
    words = [word for pair in settings.items() for word in pair]
    server = subprocess.Popen(["redis-server", *words], stdout=subprocess.DEVNULL)
    try:
        yield server
    finally:
        server.terminate()
        server.wait()


@contextmanager
def _connected(port: int) -> Iterator[redis.Redis]:
    waiting = threading.Event()
    with redis.Redis(port=port) as connection:
        for _ in range(START_TRIES):
            try:
                connection.ping()
                break
            except NotYet:
                waiting.wait(_TRY_EVERY_S)
        else:
            raise TimeoutError(f"redis-server doesn't answer on port {port}")
        yield connection


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
