"""A replicator that rested: what comes while it goes back to work gets there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.topology.replicating import clusters, nothing_more, received, soon
from velaray.geo.replication import replicator
from velaray.geo.replication.replicator_target import Target


def test_messages_published_during_a_reconnection_are_replicated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicator, "REST_S", 0.1)
    opening, go_on = asyncio.Event(), asyncio.Event()
    reach = Target.open

    async def slowly(target: Target) -> None:
        opening.set()
        await go_on.wait()
        await reach(target)

    with clusters(tmp_path, "a", "b") as (a, b):
        a.replicate("t", {"b": b.describe()})
        a.publish("t", [b"0"])
        there = b.subscribe("t")
        assert received(there, 1) == [b"0"]
        soon(lambda: a.status("t", "b")["state"] == "resting")
        monkeypatch.setattr(Target, "open", slowly)
        a.publish("t", [b"1"])
        soon(opening.is_set)
        a.publish("t", [b"2"])
        soon(lambda: a.status("t", "b")["in_flight"] == 2)
        a.local.loop.call_soon_threadsafe(go_on.set)
        assert received(there, 2) == [b"1", b"2"]
        nothing_more(there)
