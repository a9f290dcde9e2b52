"""Write ``docs/sequences.md``: the messages between client and actors, traced in a running cluster.

Run as ``python -m tools.sequence_diagrams [--check]``. ``--check`` writes nothing, and
fails if the page is out of date.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

import velaray
from tools import generated_page
from velaray.broker.client_session import ClientSession
from velaray.client.connection import Connection
from velaray.journal.memory import _MemoryWriter
from velaray.local import LocalCluster
from velaray.topology.rpc import RpcConnection

PAGE = "docs/sequences.md"
_HEAD = """\
# Sequences

`make references` writes this page: it traces the client of this package in a running cluster. A
test checks that the page is current. `[journal]` is the begin of an append to the journal of the
actor, which answers when it is synced. Answers between actors, and permits, are left out.
"""
_LANES = ("client", "coordinator", "partition", "subscription")
_WIDTH = 34
_RECEIVED_MS = 30_000
_LEFT_OUT = ("Flow",)


class Step(NamedTuple):
    """What one participant sends to another; ``target`` is its own lane for an append."""

    source: str
    target: str
    text: str


class Trace:
    """Notes the messages between a client and the actors of clusters in this process."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._lock = threading.Lock()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Note what happens meanwhile."""
        hooks: tuple[tuple[type, str, Callable[..., None]], ...] = (
            (ClientSession, "on_frame", self._to_service),
            (Connection, "on_frame", self._to_client),
            (RpcConnection, "ask", self._between_actors),
            (RpcConnection, "tell", self._between_actors),
            (_MemoryWriter, "append", self._append),
        )
        with ExitStack() as stack:
            for kind, name, note in hooks:
                method = getattr(kind, name)
                stack.enter_context(patch.object(kind, name, _noting(method, note)))
            yield

    def _note(self, source: str, target: str, text: str) -> None:
        step = Step(source, target, text)
        with self._lock:
            if {source, target} <= set(_LANES) and self.steps[-1:] != [step]:
                self.steps.append(step)

    def _to_service(self, _: Any, connection: Any, command: Any, *more: Any) -> None:
        if (name := _name(command)) not in _LEFT_OUT:
            self._note("client", _served_by(name), name)

    def _to_client(self, _: Any, connection: Any, command: Any, *more: Any) -> None:
        if (name := _name(command)) not in _LEFT_OUT:
            self._note(_served_by(name), "client", name)

    def _between_actors(self, connection: Any, message: Any, *more: Any) -> None:
        actor, name = _kind_of_key(connection._actor), type(message).__name__
        if connection._served is not None:  # the accepted end
            caller = connection._transport.other._protocol._peer
            self._note(actor, _kind_of_module(type(caller).__module__), name)
        else:
            self._note(_kind_of_caller(connection), actor, name)

    def _append(self, writer: Any, *more: Any, **options: Any) -> None:
        actor = _kind_of_key(writer._journal)
        self._note(actor, actor, "journal")


def _noting(method: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    def noted(*args: Any, **options: Any) -> Any:
        note(*args, **options)
        return method(*args, **options)

    return noted


def _name(command: Any) -> str:
    return type(command).__name__.removeprefix("Command")


def _served_by(name: str) -> str:
    return "coordinator" if "Txn" in name else "partition"


def _kind_of_key(text: str) -> str:
    return text.partition("/")[0]


def _kind_of_module(module: str) -> str:
    parts = module.removeprefix("velaray.").split(".")
    return parts[1] if parts[0] == "broker" and len(parts) > 2 else ""


def _kind_of_caller(connection: Any) -> str:
    """The kind of the actor that calls: the nearest caller in a package of an actor."""
    found = _kind_of_module(type(connection._peer).__module__)
    frame: FrameType | None = sys._getframe(1)
    while not found and frame is not None:
        found = _kind_of_module(frame.f_globals.get("__name__", ""))
        frame = frame.f_back
    return found


def _drawn(steps: list[Step]) -> Iterator[str]:
    """The steps as lines of text; an arrow leads from lane to lane."""
    lanes = [lane for lane in _LANES if any(lane in step[:2] for step in steps)]
    yield "".join(lane.ljust(_WIDTH) for lane in lanes).rstrip()
    for source, target, text in steps:
        line = list(("|" + " " * (_WIDTH - 1)) * len(lanes))
        first, last = sorted((lanes.index(source) * _WIDTH, lanes.index(target) * _WIDTH))
        if first == last:
            line[first : first + len(text) + 4] = f"| [{text}]"
        else:
            inner = f" {text} ".center(last - first - 1, "-")
            onward = lanes.index(source) < lanes.index(target)
            line[first + 1 : last] = f"{inner[:-1]}>" if onward else f"<{inner[1:]}"
        yield "".join(line).rstrip()


def _publish(client: velaray.Client, trace: Trace) -> None:
    with client.create_producer("a") as producer, trace.running():
        producer.send(b"message")


def _deliver(client: velaray.Client, trace: Trace) -> None:
    with client.create_producer("b") as producer:
        consumer = client.subscribe("b", "s")
        producer.send(b"first")
        consumer.acknowledge(consumer.receive(_RECEIVED_MS), receipt=True)
        with trace.running():
            producer.send(b"message")
            consumer.acknowledge(consumer.receive(_RECEIVED_MS), receipt=True)


def _commit(client: velaray.Client, trace: Trace) -> None:
    with client.create_producer("c") as results, client.create_producer("d") as producer:
        consumer = client.subscribe("d", "s")
        for tracing in (nullcontext(), trace.running()):
            producer.send(b"message")
            message = consumer.receive(_RECEIVED_MS)
            with tracing, client.transaction() as transaction:
                results.send(b"result", txn=transaction)
                consumer.acknowledge(message, txn=transaction)


_SCENARIOS = (
    (
        "A message is published",
        _publish,
        "Entries that arrive during an append share the next one.",
    ),
    (
        "A message is delivered and acknowledged",
        _deliver,
        "The subscription granted the entry to the consumer before, because it had permits.",
    ),
    (
        "A transaction consumes and produces",
        _commit,
        "The first append of the coordinator after `EndTxn` is the verdict: the transaction counts "
        "from then on.\nPartition and subscription stand for those of both topics.",
    ),
)


def page() -> str:
    """The text of the page, from a new cluster in memory."""
    text = _HEAD
    with LocalCluster.start() as cluster, velaray.Client(cluster.service_url) as client:
        for title, scenario, remark in _SCENARIOS:
            trace = Trace()
            scenario(client, trace)
            drawn = "\n".join(_drawn(trace.steps))
            text += f"\n## {title}\n\n{remark}\n\n```text\n{drawn}\n```\n"
    return text


def out_of_date(root: Path) -> list[str]:
    """A fault if the page below ``root`` differs from what a cluster does now."""
    return generated_page.out_of_date(root, PAGE, page(), "references")


if __name__ == "__main__":
    generated_page.run(PAGE, page(), "references")
