"""What the store behind a URL makes of a server's answers, also of wrong and missing ones."""

import asyncio
import json
import pickle
import random
from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests.journal.stub_store import BUCKET, Break, Fault, StubStore, error_answer, stub_store
from tests.journal.testing import on_loop
from tests.support.waiting import wait_until
from velaray.journal.errors import NotStored
from velaray.journal.objects.bodies import Kind, decode_body
from velaray.journal.objects.conditional import ConditionalObjects, Replaced, Taken
from velaray.journal.objects.object_store import (
    ObjectChanged,
    ObjectExists,
    StoreRefused,
    StoreUnavailable,
)
from velaray.journal.objects.remote_objects import RemoteObjects, open_objects

URL = f"s3://{BUCKET}/a/prefix"
SLOW_DOWN = error_answer(503, "SlowDown")
CONFLICT = error_answer(409, "ConditionalRequestConflict")
DENIED = error_answer(403, "AccessDenied")
NO_BUCKET = error_answer(404, "NoSuchBucket")
LOST = [Fault(Break.DROP, applied=True), Fault(Break.HANG, applied=True)]

Operation = Callable[[RemoteObjects], Awaitable[object]]
OPERATIONS: dict[str, Operation] = {
    "create": lambda objects: objects.create("new", b"data"),
    "replace": lambda objects: objects.replace("old", b"data", '"1"'),
    "get": lambda objects: objects.get("old"),
    "get_range": lambda objects: objects.get_range("old", 0, 1),
    "list": lambda objects: objects.list("old"),
    "delete": lambda objects: objects.delete(["old"]),
}


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubStore]:
    with stub_store() as (store, url):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield store


@pytest.fixture(params=OPERATIONS)
def operation(request: pytest.FixtureRequest) -> Operation:
    return OPERATIONS[request.param]


def conditional(objects: RemoteObjects) -> ConditionalObjects:
    return ConditionalObjects(objects, random.randbytes, random)


@on_loop
async def test_objects_are_created_replaced_read_and_deleted(stub):
    objects = open_objects(URL)
    first = await objects.create("x", b"one")
    assert await objects.get("x") == (b"one", first)
    second = await objects.replace("x", b"three", first)
    assert await objects.get("x") == (b"three", second)
    assert await objects.get_range("x", 1, 3) == b"hre"
    assert await objects.get_range("x", 3, 30) == b"ee"
    assert await objects.get_range("x", 5, 1) == b""
    await objects.delete(["x", "absent"])
    assert await objects.get("x") is None
    with pytest.raises(NotStored):
        await objects.get_range("x", 0, 1)
    await objects.close()
    counters = objects.counters
    assert (counters.puts, counters.gets, counters.deletes) == (2, 7, 1)
    assert (counters.bytes_written, counters.bytes_read) == (8, 13)


@on_loop
async def test_a_taken_name_and_another_version_are_told_apart_from_failures(stub):
    objects = open_objects(URL)
    first = await objects.create("x", b"one")
    with pytest.raises(ObjectExists, match=f"{URL}/x"):
        await objects.create("x", b"two")
    await objects.replace("x", b"two", first)
    with pytest.raises(ObjectChanged, match=f"{URL}/x"):
        await objects.replace("x", b"three", first)
    await objects.delete(["x"])
    with pytest.raises(ObjectChanged):
        await objects.replace("x", b"three", first)


def google(url: str) -> dict[str, str]:
    key = {"gcs_base_url": url, "disable_oauth": True}
    unused = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key | unused)}


def azure(url: str) -> dict[str, str]:
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_STORAGE_ACCOUNT_KEY": "a2V5",
        "AZURE_STORAGE_ENDPOINT": url,
    }


@pytest.mark.parametrize(("scheme", "variables"), [("gs", google), ("az", azure)])
@on_loop
async def test_the_stores_of_google_and_azure_have_the_same_writes(monkeypatch, scheme, variables):
    with stub_store() as (_, url):
        for name, value in variables(url).items():
            monkeypatch.setenv(name, value)
        objects = open_objects(f"{scheme}://{BUCKET}/a/prefix")
        first = await objects.create("x", b"one")
        with pytest.raises(ObjectExists):
            await objects.create("x", b"two")
        second = await objects.replace("x", b"two", first)
        with pytest.raises(ObjectChanged):
            await objects.replace("x", b"three", first)
        assert await objects.get("x") == (b"two", second)
        await objects.replace("x", b"three", second)


@on_loop
async def test_names_are_listed_by_any_prefix_and_over_pages(stub):
    objects = open_objects(URL)
    names = [f"a/b{i}" for i in range(7)] + ["a/c", "ab"]
    for name in names:
        await objects.create(name, b"")
    assert await objects.list("a/b") == names[:7]
    assert await objects.list("a/") == names[:8]
    assert await objects.list("") == sorted(names)
    assert await objects.list("a/b6") == ["a/b6"]
    assert await objects.list("nothing/") == []


@on_loop
async def test_deletions_are_batched(stub):
    await open_objects(URL).delete([f"x{i}" for i in range(2001)])
    assert stub.deleted == [1000, 1000, 1]


@on_loop
async def test_a_failing_server_is_unavailable_and_asked_once(stub, operation):
    stub.faults.append(SLOW_DOWN)
    with pytest.raises(StoreUnavailable, match="503"):
        await operation(open_objects(URL))
    assert len(stub.requests) == 1


@on_loop
async def test_a_refused_request_names_the_store_and_the_remedy_and_is_not_repeated(
    stub, operation
):
    stub.faults.append(DENIED)
    objects = open_objects(URL)
    with pytest.raises(StoreRefused, match="AWS_ACCESS_KEY_ID") as raised:
        await conditional(objects).repeated(lambda: operation(objects))
    assert f"{URL}/" in str(raised.value) and "AccessDenied" in str(raised.value)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    assert len(stub.requests) == 1


@on_loop
async def test_a_missing_bucket_is_neither_an_absent_object_nor_a_changed_one(stub, operation):
    stub.faults.append(NO_BUCKET)
    with pytest.raises(StoreRefused, match="bucket doesn't exist"):
        await operation(open_objects(URL))


@on_loop
async def test_a_404_of_something_else_than_the_store_is_no_absence(stub):
    stub.faults.append(Fault((404, b"<html>no such page</html>")))
    with pytest.raises(StoreUnavailable):
        await open_objects(URL).get("x")


@on_loop
async def test_another_region_is_refused_with_the_variable_to_set(stub):
    stub.faults.append(error_answer(301, "PermanentRedirect"))
    with pytest.raises(StoreRefused, match="AWS_REGION"):
        await open_objects(URL).get("x")


@on_loop
async def test_requests_are_repeated_through_a_burst_of_failures(stub):
    objects = conditional(open_objects(URL))
    stub.faults.extend([SLOW_DOWN, CONFLICT, SLOW_DOWN, Fault(Break.DROP)])
    tag = await objects.create("x", Kind.PART, b"one")
    stub.faults.extend([CONFLICT, SLOW_DOWN, error_answer(500, "InternalError")])
    tag = await objects.replace("x", Kind.PART, b"two", tag)
    stub.faults.extend([SLOW_DOWN, Fault(Break.CUT, applied=True), Fault(Break.DROP)])
    found = await objects.get("x")
    assert found is not None and found.tag == tag
    assert decode_body("x", "x", found.data, Kind.PART).payload == b"two"


@on_loop
async def test_a_conflict_of_requests_is_not_taken_for_an_existing_object(stub):
    objects = open_objects(URL)
    stub.faults.append(CONFLICT)
    with pytest.raises(StoreUnavailable):
        await objects.create("x", b"one")
    tag = await objects.create("x", b"one")
    stub.faults.append(CONFLICT)
    with pytest.raises(StoreUnavailable):
        await objects.replace("x", b"two", tag)
    assert await objects.get("x") == (b"one", tag)


@pytest.mark.parametrize("fault", LOST, ids=["dropped", "timeout"])
@on_loop
async def test_a_write_whose_answer_was_lost_is_recognized(stub, fault):
    objects = conditional(open_objects(URL, timeout_s=1))
    stub.faults.append(fault)
    tag = await objects.create("x", Kind.PART, b"one")
    stub.faults.append(fault)
    tag = await objects.replace("x", Kind.PART, b"two", tag)
    found = await objects.get("x")
    assert found is not None and found.tag == tag
    assert stub.requests == ["PUT", "PUT", "GET"] * 2 + ["GET"]


@pytest.mark.parametrize("fault", LOST, ids=["dropped", "timeout"])
@on_loop
async def test_the_write_of_another_writer_is_not_claimed_after_a_lost_request(stub, fault):
    objects = conditional(open_objects(URL, timeout_s=1))
    tag = await objects.create("x", Kind.PART, b"theirs")
    lost = Fault(fault.answer, applied=False)
    stub.faults.append(lost)
    with pytest.raises(Taken):
        await objects.create("x", Kind.PART, b"ours")
    await objects.replace("x", Kind.PART, b"theirs again", tag)
    stub.faults.append(lost)
    with pytest.raises(Replaced):
        await objects.replace("x", Kind.PART, b"ours", tag)


@on_loop
async def test_a_time_limit_ends_a_request(stub, operation):
    stub.faults.append(Fault(Break.HANG))
    with pytest.raises(StoreUnavailable):
        await operation(open_objects(URL, timeout_s=1))


@on_loop
async def test_an_answer_that_ends_early_is_no_object(stub):
    objects = open_objects(URL)
    await objects.create("x", bytes(1000))
    stub.faults.append(Fault(Break.CUT, applied=True))
    with pytest.raises(StoreUnavailable):
        await objects.get("x")


@on_loop
async def test_a_server_that_is_down_is_unavailable(monkeypatch, operation):
    with stub_store() as (_, url):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(StoreUnavailable):
        await operation(open_objects(URL))


@on_loop
async def test_so_many_requests_run_at_once(stub):
    objects = open_objects(URL, requests_at_once=4)
    stub.open.clear()
    writes = asyncio.gather(*(objects.create(f"x{i}", b"") for i in range(20)))
    await asyncio.to_thread(wait_until, lambda: stub.running == 4)
    stub.open.set()
    await writes
    assert stub.most_running == 4
    assert len(stub.objects) == 20


@pytest.mark.parametrize(
    "url", ["file:///data", "http://host/x", "s3://", "s3:bucket", "/data", "s3://b/x?y=1"]
)
def test_other_urls_are_refused(url):
    with pytest.raises(StoreRefused, match="s3://bucket/prefix"):
        open_objects(url)


def test_a_store_without_its_settings_is_refused_with_what_to_set(monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StoreRefused, match="AZURE_STORAGE_ACCOUNT_NAME"):
        open_objects("az://container/prefix")
