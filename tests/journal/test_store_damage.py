"""Damage to the objects of a store: whatever happens to one, no journal gives a wrong record.

Each case damages one object of a store with two journals, whose bytes are in parts, in an ended log
and in the log of a dead process. The next owner then recovers all events, or refuses by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from tests.journal.testing import KEY, ObjectBackend, blobs, events_of, open_journal, started, write
from velaray.journal.errors import JournalError
from velaray.journal.journal import JournalSettings
from velaray.journal.objects.bodies import Kind
from velaray.journal.objects.object_store import StoredObject

OTHER = "partition/public/default/others/0/2"
SETTINGS = JournalSettings(roll_records=4)
Objects = dict[str, StoredObject]


async def _fill(backend: ObjectBackend) -> dict[str, list[bytes]]:
    """Write two journals with two processes; return the events of each."""
    events: dict[str, list[bytes]] = {KEY: [], OTHER: []}
    for process in range(2):
        store = backend.store()
        for key in events:
            if process == 0 or key == KEY:
                journal = await started(store, key, SETTINGS)
                for number in range(9):
                    new = b"%d-%d-%s" % (process, number, key[-3:].encode())
                    await write(journal, new)
                    events[key].append(new)
                    if journal.should_roll:
                        await journal.roll({"events": b"\n".join(events[key])}, b"digest")
                    if number == 5:
                        await store.housekeeper.unpack(store.activations[key])
        await store.housekeeper.raise_floor(store.log)
    return events


def flip(raw: bytes, others: list[bytes], chance: Random) -> bytes:
    """One bit is another."""
    damaged = bytearray(raw)
    damaged[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def truncate(raw: bytes, others: list[bytes], chance: Random) -> bytes:
    """The end is missing."""
    return raw[: chance.randrange(len(raw))]


def extend(raw: bytes, others: list[bytes], chance: Random) -> bytes:
    """There are bytes behind the end."""
    return raw + chance.randbytes(1 + chance.randrange(40))


def replace_by_another(raw: bytes, others: list[bytes], chance: Random) -> bytes:
    """It is a copy of another object."""
    return chance.choice(others)


def replace_by_garbage(raw: bytes, others: list[bytes], chance: Random) -> bytes:
    """It is something else."""
    return chance.randbytes(chance.randrange(200))


DAMAGES = (flip, truncate, extend, replace_by_another, replace_by_garbage)


async def _check(backend: ObjectBackend, events: dict[str, list[bytes]], name: str) -> str:
    """Open both journals; return "whole" or "refused". Fails for wrong or missing records."""
    outcome = "whole"
    for key in events:
        try:
            journal = await open_journal(backend.store(), key)
            found, stored = events_of(journal), await blobs(journal)
        except JournalError as error:
            # The bytes of a ledger are addressed by offset, in whatever part they are.
            place = name.rpartition("/")[0] if name.startswith("ledgers/") else name
            assert place in str(error), f"{error!r} doesn't name {name}"
            outcome = "refused"
        else:
            assert found == events[key], f"{name}: other events of {key}"
            assert stored == [event * 3 for event in events[key]], f"{name}: other blobs of {key}"
    return outcome


async def _run(cases: int, damage: Callable[[bytes, list[bytes], Random], bytes]) -> set[str]:
    backend, outcomes = ObjectBackend(), set[str]()
    events = await _fill(backend)
    whole, chance = dict(backend.bucket.objects), Random(damage.__name__)
    assert {name.split("/")[0] for name in whole} == {"hosts", "journals", "ledgers", "numbers"}
    assert await _check(backend, events, "") == "whole"
    for case in range(cases):
        backend.bucket.objects = dict(whole)
        name = sorted(whole)[case % len(whole)]
        others = [each.data for other, each in sorted(whole.items()) if other != name]
        raw = damage(whole[name].data, others, chance)
        backend.bucket.objects[name] = StoredObject(raw, whole[name].tag)
        outcomes.add(await _check(backend, events, name))
    return outcomes


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_object_is_survived_or_refused_by_name(
    damage: Callable[[bytes, list[bytes], Random], bytes],
) -> None:
    assert "refused" in asyncio.run(_run(1_000, damage))


def test_a_missing_object_is_survived_or_refused_by_name() -> None:
    assert asyncio.run(_remove_each()) == {"whole", "refused"}


async def _remove_each() -> set[str]:
    """Remove one object after the other, but for the newest of a log that nobody has ended: nothing
    shows that it was there."""
    backend, outcomes = ObjectBackend(), set[str]()
    events = await _fill(backend)
    whole = dict(backend.bucket.objects)
    logs = [name for name in sorted(whole) if name.startswith("hosts/") and "floor" not in name]
    sealed = {name.split("/")[1] for name in logs if whole[name].data[8] == Kind.SEAL}
    newest = [name for name in logs if name.split("/")[1] not in sealed][-1]
    for name in sorted(whole.keys() - {newest}):
        backend.bucket.objects = {other: whole[other] for other in whole if other != name}
        outcomes.add(await _check(backend, events, name))
    return outcomes


def test_foreign_objects_are_ignored() -> None:
    async def add() -> str:
        backend = ObjectBackend()
        events = await _fill(backend)
        for folder in ("", "hosts/", "journals/partition/", f"ledgers/{KEY}/", "numbers/"):
            backend.bucket.create(f"{folder}foreign", b"something else")
        assert await backend.store().list_journals() == list(events)
        return await _check(backend, events, "")

    assert asyncio.run(add()) == "whole"
