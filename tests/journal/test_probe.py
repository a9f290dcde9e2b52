"""The check of object stores: right ones pass, and wrong ones fail by the name of a check."""

import asyncio
import pickle
import random

import pytest

from tests.journal.testing import on_loop
from tests.support.on_s3 import on_s3
from velaray.journal.objects.memory_objects import (
    Call,
    Late,
    MemoryBucket,
    MemoryObjects,
    Request,
)
from velaray.journal.objects.object_store import (
    ObjectChanged,
    ObjectExists,
    StoredObject,
    StoreRefused,
    StoreUnavailable,
)
from velaray.journal.objects.probe import Check, UnfitStore, check_store
from velaray.journal.objects.remote_objects import open_objects


async def check(objects: MemoryObjects) -> None:
    seeded = random.Random(5)
    await check_store(objects, seeded.randbytes, seeded)


@on_loop
async def test_the_model_in_memory_passes_and_nothing_is_left():
    objects = MemoryObjects()
    await check(objects)
    assert objects.bucket.objects == {}


@on_loop
async def test_a_right_store_whose_answers_get_lost_passes():
    chance = random.Random(3)

    async def lose(call: Call) -> None:
        if call.request is not Request.DELETE and chance.random() < 0.1:
            late = not call.done and call.request in (Request.CREATE, Request.REPLACE)
            raise Late(0.01) if late else StoreUnavailable(call.name, "lost")

    for _ in range(3):
        await check(MemoryObjects(hook=lose))


@on_s3
@on_loop
async def test_a_real_server_passes_and_nothing_is_left(s3_url):
    objects = open_objects(s3_url)
    for _ in range(3):
        await check_store(objects, random.randbytes, random)
    assert await objects.list("") == []


class OverwritesSometimes(MemoryObjects):
    """Every seventh creation overwrites."""

    creations = 0

    async def create(self, name: str, data: bytes) -> str:
        self.creations += 1
        if self.creations % 7 == 0:
            self.bucket.objects.pop(name, None)
        return await super().create(name, data)


class IgnoresTags(MemoryObjects):
    """Replaces whatever version is stored."""

    async def replace(self, name: str, data: bytes, tag: str) -> str:
        found = self.bucket.objects.get(name)
        return await super().replace(name, data, found.tag if found else tag)


class ComparesWithoutLock(MemoryObjects):
    """Compares first and writes later: only concurrent writers notice."""

    async def replace(self, name: str, data: bytes, tag: str) -> str:
        found = self.bucket.objects.get(name)
        if found is None or found.tag != tag:
            raise ObjectChanged(name)
        await asyncio.sleep(0)
        return self.bucket.replace(name, data, self.bucket.objects[name].tag)


class StoresTheLoser(MemoryObjects):
    """Refuses a creation, and stores its object."""

    async def create(self, name: str, data: bytes) -> str:
        try:
            return await super().create(name, data)
        except ObjectExists:
            self.bucket.objects[name] = StoredObject(data, self.bucket.objects[name].tag)
            raise


class ReadsStale(MemoryObjects):
    """A read returns the version before the newest."""

    def __init__(self) -> None:
        super().__init__()
        self.former: dict[str, StoredObject] = {}

    async def replace(self, name: str, data: bytes, tag: str) -> str:
        former = self.bucket.objects.get(name)
        stored = await super().replace(name, data, tag)
        if former is not None:
            self.former[name] = former
        return stored

    async def get(self, name: str) -> StoredObject | None:
        return self.former.get(name) or await super().get(name)


class CreatesOnReplace(MemoryObjects):
    """Replaces a deleted object."""

    async def replace(self, name: str, data: bytes, tag: str) -> str:
        if name not in self.bucket.objects:
            return await self.create(name, data)
        return await super().replace(name, data, tag)


class KeepsDeleted(MemoryObjects):
    """Reads show deleted objects."""

    async def delete(self, names) -> None:
        return None


class IgnoresRanges(MemoryObjects):
    """A read of a part returns the whole object."""

    async def get_range(self, name: str, start: int, length: int) -> bytes:
        found = await self.get(name)
        assert found is not None
        return found.data


class RefusesAll(MemoryObjects):
    """Refuses every creation."""

    async def create(self, name: str, data: bytes) -> str:
        raise ObjectExists(name)


class AcceptsRepeated(MemoryObjects):
    """Accepts the creation of an object with the same bytes."""

    async def create(self, name: str, data: bytes) -> str:
        found = self.bucket.objects.get(name)
        return found.tag if found and found.data == data else await super().create(name, data)


class OtherBytes(MemoryObjects):
    """Reads return something else."""

    async def get(self, name: str) -> StoredObject | None:
        found = await super().get(name)
        return found and found._replace(data=found.data[:-1])


FAULTY = [
    (OverwritesSometimes, Check.CREATE, "succeeded"),
    (RefusesAll, Check.CREATE, "none of 32"),
    (StoresTheLoser, Check.CREATE, "refused writer"),
    (IgnoresTags, Check.REPLACE, "32 of 32"),
    (ReadsStale, Check.READ, "missed"),
    (OtherBytes, Check.READ, "other bytes"),
    (CreatesOnReplace, Check.DELETED, "succeeded"),
    (KeepsDeleted, Check.READ, "deleted object"),
    (IgnoresRanges, Check.RANGE, "bytes 0 to 1"),
    (AcceptsRepeated, Check.REPEATED, "again"),
]


@pytest.mark.parametrize(("store", "failed", "detail"), FAULTY)
@on_loop
async def test_a_faulty_store_fails_by_name(store, failed, detail):
    with pytest.raises(UnfitStore, match="memory:probes/") as raised:
        await check(store())
    error = pickle.loads(pickle.dumps(raised.value))
    assert error.check is failed and str(failed) in str(error)
    assert detail in error.detail


@on_loop
async def test_a_store_that_compares_and_writes_in_two_steps_fails():
    with pytest.raises(UnfitStore) as raised:
        await check(ComparesWithoutLock())
    assert raised.value.check is Check.REPLACE


@on_loop
async def test_a_faulty_store_is_left_without_the_objects_of_the_check():
    bucket = MemoryBucket()
    with pytest.raises(UnfitStore):
        await check(IgnoresTags(bucket))
    assert bucket.objects == {}


@on_loop
async def test_a_refusal_ends_the_check():
    async def refuse(call: Call) -> None:
        if call.request is Request.LIST:
            raise StoreRefused(call.name, "access denied", "allow it")

    objects = MemoryObjects(hook=refuse)
    with pytest.raises(StoreRefused):
        await check(objects)
    assert objects.bucket.objects == {}
