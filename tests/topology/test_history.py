"""States of the past, from journals: without a cluster, and beside one that runs."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.actors.machine import digest
from velaray.actors.runtime import Runtime
from velaray.actors.subscription.machine import Ack, AckBefore, Create, Reset, SubscriptionMachine
from velaray.broker.history import NoHistory, PointInTime, state_at, subscriptions_of
from velaray.cli.app import main
from velaray.events.ids import ActorKey, TopicName
from velaray.journal.errors import NotStored
from velaray.journal.journal import JournalSettings
from velaray.journal.memory import MemoryStore
from velaray.sync.client import Client

TOPIC = TopicName.parse("t")
KEY = ActorKey.of_partition(TOPIC, 1).of_subscription("s", 1)
SMALL = JournalSettings(roll_records=7)


def a_command(rng: random.Random) -> Any:
    end = 200
    match rng.randrange(10):
        case 0:
            return Reset(rng.randrange(end), "test")
        case 1:
            return AckBefore(end, rng.randrange(end))
        case 2 | 3:
            return Ack(end, partial=[(rng.randrange(end), rng.randrange(8))])
    first = rng.randrange(end - 5)
    return Ack(end, [(first, first + rng.randrange(1, 5))])


@pytest.mark.parametrize("seed", range(3))
def test_a_past_state_equals_the_live_state_of_that_time(seed: int) -> None:
    rng = random.Random(seed)
    machine = SubscriptionMachine()

    async def scenario() -> None:
        store, clock = MemoryStore(), [1_000]
        noted: list[tuple[int, int, bytes]] = []
        for _ in range(3):
            runtime = await Runtime.recover(
                machine, store, KEY, lambda: clock[0], SMALL, lambda error: None
            )
            await runtime.ask(Create(0))
            for _ in range(20):
                clock[0] += rng.randrange(1, 50)
                await runtime.ask(a_command(rng))
                journal = runtime.journal
                shown = digest(machine.snapshot(runtime.state))
                noted.append((journal.next_sequence - 1, clock[0], shown))
            await runtime.close()
        for sequence, at_ms, shown in noted:
            for moment in (PointInTime(sequence=sequence), PointInTime(at_ms=at_ms)):
                past = await state_at(store, KEY, moment)
                assert digest(machine.snapshot(past.state)) == shown, (sequence, at_ms)
        newest = await state_at(store, KEY, PointInTime())
        assert digest(machine.snapshot(newest.state)) == noted[-1][2]
        with pytest.raises(NoHistory, match="events that old are no longer kept"):
            await state_at(store, KEY, PointInTime(at_ms=999))
        with pytest.raises(NoHistory, match="has no event 1000"):
            await state_at(store, KEY, PointInTime(sequence=1000))
        with pytest.raises(NotStored):
            await subscriptions_of(store, TOPIC, "other")
        assert await subscriptions_of(store, TOPIC, "s") == [KEY]

    asyncio.run(scenario())


def velaray(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == code, result.output
    return result


def state(data: Path, topic: str, *words: str) -> dict[str, Any]:
    said = velaray("subscriptions", "state", topic, "s", "--data", str(data), "-o", "json", *words)
    (found,) = json.loads(said.stdout)
    return dict(found)


def test_the_command_shows_past_states_with_or_without_a_cluster(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster, Client(cluster.service_url) as client:
        consumer = client.subscribe("t", "s")
        producer = client.create_producer("t")
        for content in (b"a", b"b", b"c"):
            producer.send(content)
        got = [consumer.receive(10_000) for _ in range(3)]
        ids = [f"{one.message_id().ledger_id()}:{one.message_id().entry_id()}" for one in got]
        # The state at a message is that at its millisecond: acknowledge in a later one.
        stored_ms = time.time_ns() // 1_000_000
        wait_until(lambda: time.time_ns() // 1_000_000 > stored_ms)
        consumer.acknowledge(got[1], receipt=True)
        before = state(tmp_path, "t")
        consumer.acknowledge(got[0], receipt=True)
        after = state(tmp_path, "t")
    assert (before["ackedBefore"], after["ackedBefore"]) == (0, 2)
    assert [(one["first"], one["last"]) for one in before["ackedRanges"]] == [(ids[1], ids[1])]
    assert after["markDelete"] == ids[1]
    assert state(tmp_path, "t", "--at", str(before["event"])) == before
    assert state(tmp_path, "t", "--at", str(after["atMs"]))["ackedBefore"] == 2
    assert state(tmp_path, "t", "--at", ids[2])["ackedRanges"] == []
    text = velaray("subscriptions", "state", "t", "s", "--data", str(tmp_path)).stdout
    assert f"cursor: everything up to {ids[1]} was acknowledged, or lies before" in text
    gone = velaray(
        "subscriptions", "state", "t", "s", "--data", str(tmp_path), "--at", "1999-01-01", code=1
    )
    assert "events that old are no longer kept" in gone.output
    missing = velaray(
        "subscriptions", "state", "t", "s", "--data", str(tmp_path), "--at", "7:7", code=1
    )
    assert "holds no entry 7:7" in missing.output
