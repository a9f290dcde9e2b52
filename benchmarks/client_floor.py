"""How fast the official client publishes over 1 and 16 topics if the server only answers.

Run as ``python -m benchmarks.client_floor [--rounds N] [--seconds S]``. The workload ``topics``
runs against velaray and against a server that answers each message without keeping it. The client
causes what publishing over 16 topics loses with the second one. Both batch in one half of the
measurements, and send each message as an entry of its own in the other.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import product
from statistics import median
from typing import Any, Self

from rich.console import Console
from rich.table import Table

from benchmarks.contract import UNBATCHED, Peer
from benchmarks.loads import topics
from benchmarks.machine import describe_machine
from benchmarks.systems import official_client
from benchmarks.systems.velaray_cluster import VelarayCluster
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import PROTOCOL_VERSION, Command, Send, command, send_receipt
from velaray.wire.connection import WireConnection
from velaray.wire.errors import CorruptEntryError

TOPICS = (1, 16)
SIZE = 100
WAYS = {"": "batched", UNBATCHED: "one an entry"}
Measured = tuple[str, str, int]
"""A server, a way to send, and the number of topics."""


class AnsweringServer:
    """A `benchmarks.contract.Peer` for producers only."""

    def __init__(self) -> None:
        server = "answers every message, keeps none"
        self.settings = {"server": server, "client": official_client.SETTINGS}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            arguments = [sys.executable, "-m", "benchmarks.client_floor", "--answer"]
            self._process = stack.enter_context(
                subprocess.Popen(
                    arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            assert self._process.stdin is not None and self._process.stdout is not None
            stack.callback(self._process.stdin.close)  # it ends then
            port = int(self._process.stdout.readline())
            url = f"pulsar://127.0.0.1:{port}"
            self._client = stack.enter_context(official_client.connected(url))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def servers(self) -> Iterable[int]:
        """The one process."""
        return {self._process.pid}

    def prepare(self, topic: str, subscriptions: Sequence[str]) -> None:
        """Nothing: it serves every topic."""

    def remove(self, topic: str) -> None:
        """Nothing: it keeps none."""

    def sender(self, topic: str, way: str) -> AbstractContextManager[Any]:
        """See `benchmarks.contract.Peer`."""
        return official_client.sender(self._client, topic, way)

    def single_sender(self, topic: str, way: str) -> AbstractContextManager[Any]:
        """See `benchmarks.contract.Peer`."""
        return self.sender(topic, way)

    @contextmanager
    def taker(self, topic: str, subscription: str, way: str) -> Iterator[Any]:
        """Refused: nothing is kept."""
        raise NotImplementedError("the answering server keeps no messages")
        yield


class _Answers:
    """A client's connection, which sends what producers need."""

    def __init__(self, service_url: str) -> None:
        self._service_url = service_url
        self._received = 0

    def on_connected(self, connection: WireConnection) -> None:
        """Nothing."""

    def on_frame(self, connection: WireConnection, received: Command, entry: bytes | None) -> None:
        """Answer."""
        if type(received) is Send:
            self._received += 1
            connection.write(
                send_receipt(
                    received.producer_id,
                    received.sequence_id,
                    1,
                    self._received,
                    received.highest_sequence_id,
                )
            )
            return
        answer = self._answer_to(received)
        if isinstance(received, pb.CommandConnect):
            connection.establish()
        connection.write(command(answer))

    def _answer_to(self, received: Command) -> Any:
        if isinstance(received, pb.CommandConnect):
            return pb.CommandConnected(
                server_version="answers",
                protocol_version=PROTOCOL_VERSION,
                max_message_size=5 << 20,
            )
        number = received.request_id
        if isinstance(received, pb.CommandPartitionedTopicMetadata):
            kind = pb.CommandPartitionedTopicMetadataResponse
            return kind(request_id=number, partitions=0, response=kind.Success)
        if isinstance(received, pb.CommandLookupTopic):
            found = pb.CommandLookupTopicResponse
            return found(
                request_id=number,
                brokerServiceUrl=self._service_url,
                response=found.Connect,
                authoritative=True,
            )
        if isinstance(received, pb.CommandProducer):
            name = f"producer-{received.producer_id}"
            return pb.CommandProducerSuccess(
                request_id=number, producer_name=name, last_sequence_id=-1, schema_version=b""
            )
        return pb.CommandSuccess(request_id=number)

    def on_corrupt_entry(self, connection: WireConnection, error: CorruptEntryError) -> None:
        """Raise it: the client doesn't send one."""
        raise error

    def on_writable(self, connection: WireConnection) -> None:
        """Nothing."""

    def on_closed(self, connection: WireConnection, error: Exception | None) -> None:
        """Nothing."""


async def _answer() -> None:
    url = ""

    def connection() -> WireConnection:
        return WireConnection(_Answers(url))

    listener = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    url = f"pulsar://127.0.0.1:{port}"
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    listener.close()


def measure(rounds: int, seconds: float) -> dict[Measured, list[dict[str, float]]]:
    """The values of each round."""
    found: dict[Measured, list[dict[str, float]]] = {}
    with ExitStack() as stack:
        peers: dict[str, Peer] = {
            "velaray": stack.enter_context(VelarayCluster("always")),
            "answering server": stack.enter_context(AnsweringServer()),
        }
        for number in range(rounds + 1):
            for (name, peer), way, count in product(peers.items(), WAYS, TOPICS):
                values = topics.run(peer, way, SIZE, seconds, count)
                if number:  # the first round doesn't count
                    plain = {measure: value for measure, (_, value) in values.items()}
                    found.setdefault((name, way, count), []).append(plain)
    return found


def main() -> None:
    """Measure, and print the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each workload")
    parser.add_argument("--answer", action="store_true", help="be the answering server")
    given: Any = parser.parse_args()
    if given.answer:
        asyncio.run(_answer())
        return
    found = measure(given.rounds, given.seconds)
    table = Table(title=f"publish, {SIZE} B, medians of {given.rounds} rounds")
    for title in ("server", "sent", "topics", "msg/s", "server CPU, s/M", "client CPU, s/M"):
        table.add_column(title, justify="left" if title in ("server", "sent") else "right")
    for (name, way, count), values in found.items():
        middle = {each: median(value[each] for value in values) for each in values[0]}
        table.add_row(
            name,
            WAYS[way],
            str(count),
            f"{middle['publish']:,.0f}",
            f"{middle['server CPU']:.2f}",
            f"{middle['client CPU']:.2f}",
        )
    console = Console()
    for name, text in describe_machine().items():
        console.print(f"{name}: {text}")
    console.print(table)
    for name, way in dict.fromkeys((name, way) for name, way, _ in found):
        one, many = (
            [value["publish"] for value in found[name, way, count]]
            for count in (TOPICS[0], TOPICS[-1])
        )
        ratio = median(second / first for first, second in zip(one, many, strict=True))
        console.print(f"{name}, {WAYS[way]}: {TOPICS[-1]} topics over one: {ratio:.2f}")


if __name__ == "__main__":
    main()
