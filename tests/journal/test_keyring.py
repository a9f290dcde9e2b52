"""The keyring: data keys are durable before use, shared by processes, and destroyed for all."""

from __future__ import annotations

import asyncio
import os
import random
import stat
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journal.testing import on_loop
from velaray.journal.encryption import keyring as module
from velaray.journal.encryption.key_files import DirectoryKeys
from velaray.journal.encryption.keyring import (
    PART_OVERHEAD,
    Keyring,
    LostDataKey,
    NoLease,
    Part,
    head_of,
    master_keys_of,
)
from velaray.journal.encryption.keyring_places import KeyringFiles, KeyringObjects
from velaray.journal.errors import CorruptJournal, MissingKey, UnsupportedFormat
from velaray.journal.objects.memory_objects import (
    Call,
    Late,
    MemoryBucket,
    MemoryObjects,
    Request,
)
from velaray.journal.objects.object_store import ObjectChanged, ObjectExists, StoreUnavailable

NAMESPACE = "public/erasable"
LEASE_S = 5.0


class Place:
    """A place for keyrings, which processes open by themselves, and a clock for all of them."""

    def __init__(self, root: Path, *, files: bool) -> None:
        self.root, self.files = root, files
        self.bucket = MemoryBucket()
        self.now_s = 100.0
        self.keys = root / "keys"
        self.keys.mkdir()
        self.add_key("001")
        self.provider = DirectoryKeys(self.keys)

    def add_key(self, name: str) -> None:
        (self.keys / name).write_bytes(b64encode(os.urandom(32)))

    def objects(self) -> KeyringObjects:
        return KeyringFiles(self.root / "data") if self.files else MemoryObjects(self.bucket)

    def keyring(self, objects: KeyringObjects | None = None) -> Keyring:
        made = objects or self.objects()
        return Keyring(made, self.provider, random.Random(1), lambda: self.now_s, lease_s=LEASE_S)

    def stored(self) -> dict[str, bytes]:
        if not self.files:
            return {name: each.data for name, each in self.bucket.objects.items()}
        root = self.root / "data"
        found = [path for path in root.rglob("*") if path.is_file() and path.name[0] != "."]
        return {str(path.relative_to(root)): path.read_bytes() for path in found}

    def put(self, name: str, data: bytes) -> None:
        if self.files:
            (self.root / "data" / name).write_bytes(data)
        else:
            self.bucket.objects[name] = self.bucket.objects[name]._replace(data=data)

    def remove(self, name: str) -> None:
        if self.files:
            (self.root / "data" / name).unlink()
        else:
            del self.bucket.objects[name]


@pytest.fixture(params=["files", "objects"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield Place(tmp_path, files=request.param == "files")


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """An erasure doesn't wait; the list has how long it would."""
    waits: list[float] = []
    sleep = asyncio.sleep

    async def wait(delay_s: float) -> None:
        waits.append(delay_s)
        await sleep(0)

    monkeypatch.setattr(module.asyncio, "sleep", wait)
    return waits


async def seal(keyring: Keyring, subject: str, plain: bytes) -> bytes:
    await keyring.prepare_to_seal(NAMESPACE, [subject])
    return keyring.seal(NAMESPACE, subject, plain)


async def opened(keyring: Keyring, sealed: bytes) -> bytes | None:
    await keyring.prepare_to_open([head_of(sealed)])
    return keyring.open(sealed)


@on_loop
async def test_sealed_messages_open_in_another_process_until_they_are_erased(place: Place) -> None:
    one, other = place.keyring(), place.keyring()
    sealed = [await seal(one, subject, b"value of %d" % at) for at, subject in enumerate("abc")]
    assert [len(each) for each in sealed] == [len(b"value of 0") + PART_OVERHEAD] * 3
    assert [await opened(other, each) for each in sealed] == [
        b"value of %d" % at for at in range(3)
    ]
    erasure = await one.erase(NAMESPACE, "b")
    assert erasure.existed
    assert erasure.digest == head_of(sealed[1]).subject_id.hex() == await one.digest(NAMESPACE, "b")
    place.now_s += LEASE_S
    for each in (one, other, place.keyring()):
        assert [await opened(each, text) for text in sealed] == [b"value of 0", None, b"value of 2"]
    one.drop()
    assert await opened(one, sealed[0]) == b"value of 0"


@on_loop
async def test_both_processes_use_the_same_key(place: Place) -> None:
    rings = [place.keyring() for _ in range(4)]
    subjects = [f"s{at}" for at in range(40)]
    await asyncio.gather(*(each.prepare_to_seal(NAMESPACE, subjects) for each in rings))
    for subject in subjects:
        heads = {head_of(each.seal(NAMESPACE, subject, b"x")) for each in rings}
        assert len(heads) == 1
        texts = {await opened(rings[0], each.seal(NAMESPACE, subject, b"x")) for each in rings}
        assert texts == {b"x"}
    assert rings[0].subject_id("other/namespace", "s0") != rings[0].subject_id(NAMESPACE, "s0")


@on_loop
async def test_a_process_that_did_not_notice_the_erasure_has_no_lease_when_it_is_complete(
    place: Place, no_wait: list[float]
) -> None:
    one, other = place.keyring(), place.keyring()
    sealed = await seal(one, "a", b"value")
    assert await opened(other, sealed) == b"value"
    await one.erase(NAMESPACE, "a")
    assert no_wait == [LEASE_S + module.SAFETY_S]
    assert other.open(sealed) == b"value"  # its lease is from before, and the erasure still waits
    place.now_s += LEASE_S
    for use in (lambda: other.open(sealed), lambda: other.seal(NAMESPACE, "a", b"later")):
        with pytest.raises(NoLease):
            use()
    assert not other.can_open([head_of(sealed)])
    assert await opened(other, sealed) is None


@on_loop
async def test_a_read_that_an_erasure_overtakes_is_repeated(tmp_path: Path) -> None:
    place = Place(tmp_path, files=False)
    reading, release = asyncio.Event(), asyncio.Event()

    async def hook(call: Call) -> None:
        if call.request is Request.GET and call.name != "keyring/index" and call.done:
            reading.set()
            await release.wait()

    one = place.keyring()
    sealed = await seal(one, "a", b"value")
    slow = place.keyring(MemoryObjects(place.bucket, hook))
    task = asyncio.ensure_future(opened(slow, sealed))
    await reading.wait()  # it has read the shard with the key, and not taken it
    await one.erase(NAMESPACE, "a")
    place.now_s += LEASE_S
    await slow.renew()
    release.set()
    assert await task is None


@on_loop
async def test_later_messages_of_an_erased_subject_have_another_key(place: Place) -> None:
    keyring = place.keyring()
    first = await seal(keyring, "a", b"first")
    await keyring.erase(NAMESPACE, "a")
    place.now_s += LEASE_S
    second = await seal(keyring, "a", b"second")
    assert [head_of(each).number for each in (first, second)] == [1, 2]
    assert [await opened(keyring, each) for each in (first, second)] == [None, b"second"]
    await keyring.erase(NAMESPACE, "a")
    place.now_s += LEASE_S
    assert [await opened(keyring, each) for each in (first, second)] == [None, None]


@on_loop
async def test_an_erasure_can_be_repeated_and_needs_no_message(
    place: Place, no_wait: list[float]
) -> None:
    keyring = place.keyring()
    assert not (await keyring.erase(NAMESPACE, "unknown")).existed
    assert no_wait == []
    await seal(keyring, "a", b"value")
    for _ in range(2):
        assert (await keyring.erase(NAMESPACE, "a")).existed
    assert len(no_wait) == 2  # the first one may have ended before its wait


@on_loop
async def test_a_replaced_shard_opens_only_with_the_former_master_key(place: Place) -> None:
    keyring = place.keyring()
    sealed = await seal(keyring, "a", b"value")
    name = f"keyring/{head_of(sealed).subject_id[:1].hex()}"
    copy = place.stored()[name]
    await keyring.erase(NAMESPACE, "a")
    assert place.stored()[name] != copy
    place.put(name, copy)  # as from a snapshot of the disk
    assert await opened(place.keyring(), sealed) == b"value"  # the limit that the guide states
    place.add_key("002")
    assert await master_keys_of(place.objects()) == {"001": 2}
    await keyring.erase(NAMESPACE, "a")
    assert await master_keys_of(place.objects()) == {"002": 2}
    (place.keys / "001").unlink()
    assert await opened(place.keyring(), sealed) is None
    place.put(name, copy)
    with pytest.raises(MissingKey, match="001"):
        await opened(place.keyring(), sealed)


@on_loop
async def test_a_lost_keyring_is_no_erasure(place: Place) -> None:
    keyring = place.keyring()
    sealed = await seal(keyring, "a", b"value")
    name = f"keyring/{head_of(sealed).subject_id[:1].hex()}"
    kept = place.stored()[name]
    place.remove(name)
    with pytest.raises(LostDataKey, match="no data key 1 of subject"):
        await opened(place.keyring(), sealed)
    place.remove("keyring/index")
    if place.files:
        (place.root / "data" / name).write_bytes(kept)
    else:
        place.bucket.create(name, kept)
    with pytest.raises(CorruptJournal, match="the index is missing"):
        await opened(place.keyring(), sealed)


@on_loop
async def test_a_reader_makes_no_keyring(place: Place) -> None:
    reader = Keyring(place.objects(), place.provider, random.Random(1), creates=False)
    with pytest.raises(CorruptJournal, match="there is no keyring"):
        await reader.prepare_to_open([Part(bytes(16), 1)])
    assert place.stored() == {}


@on_loop
async def test_changed_bytes_are_found(place: Place) -> None:
    keyring = place.keyring()
    sealed = await seal(keyring, "a", b"value")
    name = f"keyring/{head_of(sealed).subject_id[:1].hex()}"
    for at in range(module._PART.size - 12, len(sealed)):
        with pytest.raises(CorruptJournal):
            keyring.open(sealed[:at] + bytes((sealed[at] ^ 1,)) + sealed[at + 1 :])
    raw = place.stored()[name]
    for changed, error in (
        (raw[:-1] + bytes((raw[-1] ^ 1,)), CorruptJournal),
        (raw[:-1], CorruptJournal),
        (b"\x92\x02\x01", UnsupportedFormat),
        (b"\x01", CorruptJournal),
    ):
        place.put(name, changed)
        with pytest.raises(error):
            await opened(place.keyring(), sealed)


@on_loop
async def test_lost_and_late_answers(tmp_path: Path) -> None:
    place = Place(tmp_path, files=False)
    source = random.Random(7)
    failing = True

    async def hook(call: Call) -> None:
        if failing and call.request in (Request.CREATE, Request.REPLACE) and source.random() < 0.4:
            if call.done:
                raise StoreUnavailable(call.name, "lost")
            raise Late(source.uniform(0, 0.01))

    rings = [place.keyring(MemoryObjects(place.bucket, hook)) for _ in range(3)]
    subjects = [f"s{at}" for at in range(12)]
    await asyncio.gather(*(each.prepare_to_seal(NAMESPACE, subjects) for each in rings))
    sealed = {name: rings[0].seal(NAMESPACE, name, name.encode()) for name in subjects}
    await asyncio.gather(*(rings[1].erase(NAMESPACE, name) for name in subjects[:6]))
    failing = False
    place.now_s += LEASE_S
    for each in rings:
        found = {name: await opened(each, text) for name, text in sealed.items()}
        assert found == {
            name: None if at < 6 else name.encode() for at, name in enumerate(subjects)
        }


@on_loop
async def test_a_lease_in_use_is_renewed(place: Place) -> None:
    keyring = place.keyring()
    sealed = await seal(keyring, "a", b"value")
    for _ in range(5):
        place.now_s += LEASE_S * 0.7
        assert keyring.leased
        assert keyring._background is not None
        await keyring._background
        assert keyring.open(sealed) == b"value"


@on_loop
async def test_objects_are_replaced_by_compare_and_set(place: Place) -> None:
    objects = place.objects()
    tag = await objects.create("keyring/x", b"1")
    with pytest.raises(ObjectExists):
        await objects.create("keyring/x", b"2")
    newer = await objects.replace("keyring/x", b"2", tag)
    with pytest.raises(ObjectChanged):
        await objects.replace("keyring/x", b"3", tag)
    with pytest.raises(ObjectChanged):
        await objects.replace("keyring/y", b"3", tag)
    found = await objects.get("keyring/x")
    assert found is not None
    assert (found.data, found.tag) == (b"2", newer)
    assert await objects.get("keyring/y") is None
    assert await objects.list("keyring/") == ["keyring/x"]


@on_loop
async def test_concurrent_replacements_of_files(tmp_path: Path) -> None:
    places = [KeyringFiles(tmp_path) for _ in range(4)]
    await places[0].create("keyring/x", b"0")

    async def increment(files: KeyringFiles) -> None:
        for _ in range(10):
            while True:
                found = await files.get("keyring/x")
                assert found is not None
                try:
                    await files.replace("keyring/x", b"%d" % (int(found.data) + 1), found.tag)
                except ObjectChanged:
                    continue
                break

    await asyncio.gather(*map(increment, places))
    found = await places[0].get("keyring/x")
    assert found is not None
    assert found.data == b"40"
    folder = tmp_path / "keyring"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "x"]
