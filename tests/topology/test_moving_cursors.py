"""Where cursors are moved to: their targets, their order, and lost entries."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.topology.test_maintenance import KEEP_ALL, Setting, message, run
from velaray.actors.partition.machine import Publish
from velaray.actors.subscription.machine import Ack
from velaray.events.ids import Position
from velaray.journal.errors import JournalError

START_MS = 1_800_000_000_000


async def publish(setting: Setting, times_ms: list[int]) -> None:
    for at in times_ms:
        setting.sent += 1
        command = Publish("p", setting.sent, setting.sent, 1, message(at), True)
        await setting.partition.runtime.ask(command)
        setting.partition.log.cache._tail.start = setting.partition.runtime.state.end_offset


async def acknowledge(setting: Setting, first: int, end: int) -> None:
    """Acknowledge entries of the subscription "s" out of order."""
    await setting.mark("s")
    (dispatcher,) = setting.dispatchers()
    command = Ack(setting.partition.log.end_offset, [(first, end)])
    await setting.actor_system.actors[dispatcher].runtime.ask(command)  # type: ignore[attr-defined]
    setting.partition.maintenance.touched("s")


@pytest.mark.parametrize("seed", range(4))
def test_every_seek_moves_to_the_first_kept_entry_at_or_after_its_target(seed: int) -> None:
    """By id and by time, on a log with trimmed ledgers at its beginning and in its middle; never
    one entry too far, never to the earliest by mistake, never into a ledger that is gone."""

    async def scenario(setting: Setting) -> None:
        rng = Random(seed)
        await setting.subscribe("s")
        times = sorted(START_MS + rng.randrange(60) for _ in range(55))
        await publish(setting, times)
        places = [setting.partition.log.position_of(at) for at in range(55)]
        if seed:  # else nothing is trimmed
            await acknowledge(setting, 0, rng.randrange(5, 15) if seed % 2 else 1)
            await acknowledge(setting, 20, 30 + 5 * seed)
            await setting.partition.maintenance.once()
        trimmed = setting.partition.runtime.state.trimmed
        left = [at for at in range(55) if places[at].ledger_id not in trimmed]
        assert (len(left) < 55) == bool(seed)
        await setting.apply(**KEEP_ALL)
        ledgers = sorted({place.ledger_id for place in places})
        targets = [
            *rng.sample(places, 12),
            *(Position(ledger, 1000) for ledger in ledgers),
            *(Position(-1, -1), Position(ledgers[0], -1), Position(ledgers[-1] + 9, 3)),
        ]
        for target in targets:
            found = [at for at in left if places[at] >= target]
            await setting.partition.call("seek", {"name": "s", "position": list(target)})
            assert await setting.mark("s") == min(found, default=55), target
        for moment in range(START_MS - 1, START_MS + 62, 4):
            found = [at for at in left if times[at] >= moment]
            await setting.partition.call("seek", {"name": "s", "time_ms": moment})
            assert await setting.mark("s") == min(found, default=55), moment - START_MS

    run(scenario)


def test_concurrent_seeks_take_turns_and_the_last_one_wins() -> None:
    """None is refused, half done or forgotten; acknowledgements of before don't survive them."""

    async def scenario(setting: Setting) -> None:
        await setting.subscribe("s")
        await setting.publish(30)
        await acknowledge(setting, 4, 9)
        targets = [20, 3, 11, 0, 7]
        seeks = [setting.partition.cursors.reset_subscription("s", at, "seek") for at in targets]
        async with asyncio.timeout(5):
            await asyncio.gather(*seeks)
        assert await setting.mark("s") == 7
        (dispatcher,) = setting.dispatchers()
        setting.actor_system.kill(dispatcher)
        assert await setting.mark("s") == 7
        found = await setting.partition.call("find_unacked", {"name": "s", "number": 1})
        assert found == 7

    run(scenario)


def test_a_seek_behind_the_end_moves_to_the_end_and_misses_nothing() -> None:
    async def scenario(setting: Setting) -> None:
        await setting.subscribe("s")
        await setting.publish(12)
        last = setting.partition.log.position_of(11)
        for target in ([last.ledger_id, 700], [last.ledger_id + 5, 0], [(1 << 63) - 1] * 2):
            await setting.partition.call("seek", {"name": "s", "position": target})
            assert await setting.mark("s") == 12
        await setting.restart()
        await setting.publish(1)
        found = await setting.partition.call("find_unacked", {"name": "s", "number": 1})
        assert found == 12

    run(scenario)


def test_a_lost_ledger_does_not_hold_the_mark_for_ever() -> None:
    """Reading it is an error that names it; who skips it goes on, and is trimmed with the rest."""

    async def scenario(setting: Setting) -> None:
        await setting.subscribe("s")
        await setting.publish(35)
        lost = setting.partition.log.position_of(14).ledger_id
        await setting.actor_system.store.delete_ledger(setting.partition.key.text(), lost)
        await setting.restart()
        with pytest.raises(JournalError, match=str(lost)):
            await setting.partition.log.entry(14)
        await setting.acknowledge("s", 25)
        assert await setting.mark("s") == 25
        await setting.acknowledge("s", 35)
        await setting.partition.maintenance.once()
        assert await setting.mark("s") == 35
        assert lost in setting.partition.runtime.state.trimmed
        await setting.publish(1)
        found = await setting.partition.call("find_unacked", {"name": "s", "number": 1})
        assert found == 35

    run(scenario)


def test_a_delayed_message_keeps_only_its_own_ledger() -> None:
    """Pulsar keeps every later ledger until the oldest delayed message was delivered."""

    async def scenario(setting: Setting) -> None:
        await setting.subscribe("s")
        setting.sent += 1
        due = setting.now_ms + 86_400_000
        late = Publish("p", 1, 1, 1, message(setting.now_ms), True, deliver_at_ms=due)
        await setting.partition.runtime.ask(late)
        await setting.publish(40)
        before = setting.kept
        await acknowledge(setting, 1, 41)
        await setting.partition.maintenance.once()
        assert setting.kept == [before[0], before[-1]]
        await setting.restart()
        found = await setting.partition.call("find_unacked", {"name": "s", "number": 1})
        assert found == 0
        assert await setting.partition.log.entry(0)

    run(scenario)
