"""Versions side by side: the protocol number, and the error that a caller of another version gets.

``python -m tests.topology.test_compatibility`` records what the processes of a cluster exchange. It
refuses if the record of an earlier release has the same protocol number and other content.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.topology.test_rpc import ACTOR, HOST, KEY, Peer, Say, serve
from velaray.events import events_pb2
from velaray.topology import compatibility, rpc
from velaray.topology.compatibility import PROTOCOL, VERSION, Installed, installed
from velaray.topology.config import ClusterConfig
from velaray.topology.messages import Value
from velaray.topology.rpc import RpcConnectionClosed, connect

RECORD = Path(__file__).with_name("exchanged.txt")
PACKAGES = ("admin", "broker", "geo", "topology")


def exchanged() -> str:
    """Every message between actors, setting of a process, and event, a line for each."""
    return "".join(f"{line}\n" for line in (*_settings(), *_events(), *sorted(set(_messages()))))


def _settings() -> Iterator[str]:
    for each in dataclasses.fields(ClusterConfig):
        yield f"setting {each.name}: {each.type}"


def _events() -> Iterator[str]:
    for name, message in sorted(events_pb2.DESCRIPTOR.message_types_by_name.items()):
        fields = ", ".join(f"{field.number} {field.name}" for field in message.fields)
        yield f"event {name}: {fields}"


def _messages() -> Iterator[str]:
    for package in PACKAGES:
        root = importlib.import_module(f"velaray.{package}")
        for info in pkgutil.walk_packages(root.__path__, f"{root.__name__}."):
            importlib.import_module(info.name)
    waiting = [Value]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.startswith("velaray."):
            fields = ", ".join(
                f"{each.name}: {_text(each.type)}" for each in msgspec.structs.fields(kind)
            )
            yield f"message {kind.__module__.removeprefix('velaray.')}.{kind.__name__}: {fields}"


def _text(kind: object) -> str:
    return inspect.formatannotation(kind).replace("velaray.", "")


def record() -> None:
    """Write the record. Exits if the protocol number should have been raised."""
    earlier, _, content = RECORD.read_text().partition("\n") if RECORD.exists() else ("", "", "")
    if content != exchanged() and earlier not in ("", _title()) and f" {PROTOCOL}," in earlier:
        sys.exit(f"raise PROTOCOL in {compatibility.__file__}: {earlier} was released")
    RECORD.write_text(f"{_title()}\n{exchanged()}")


def _title() -> str:
    return f"protocol {PROTOCOL}, velaray {VERSION}"


def test_a_change_of_what_processes_exchange_is_recorded() -> None:
    title, _, content = RECORD.read_text().partition("\n")
    assert content == exchanged(), "run python -m tests.topology.test_compatibility"
    assert title.startswith(f"protocol {PROTOCOL}, ")


def test_the_installed_version_is_that_of_a_new_process() -> None:
    assert asyncio.run(installed()) == Installed(VERSION, PROTOCOL)


def test_a_version_that_cannot_be_loaded_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "_CALL", "raise ImportError('half installed')")
    with pytest.raises(OSError, match="can't be loaded: ImportError: half installed"):
        asyncio.run(installed())


def test_a_caller_of_another_version_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        server = serve(Peer())
        port = await server.open(HOST)
        monkeypatch.setattr(rpc, "PROTOCOL", PROTOCOL + 1)  # the caller sends it with its hello
        rpc_connection = await connect(HOST, port, ACTOR, Peer(), KEY)
        monkeypatch.undo()
        with pytest.raises(RpcConnectionClosed, match="restart the cluster as a whole"):
            await rpc_connection.ask(Say("hello"))
        server.stop()

    asyncio.run(scenario())


if __name__ == "__main__":
    record()
