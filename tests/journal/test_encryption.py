"""Encrypted ledgers: nothing readable is stored, and each part opens at its place alone."""

from __future__ import annotations

import asyncio
import os
import threading
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.journal.testing import (
    KEY,
    Backend,
    MemoryBackend,
    ObjectBackend,
    S3Backend,
    blobs,
    events_of,
    on_loop,
    open_journal,
    started,
)
from tests.support.s3_server import content_of
from velaray.events.ids import Position
from velaray.events.segments import StoredSegment
from velaray.journal import frames
from velaray.journal.damage import find_damage
from velaray.journal.encryption.key_files import DirectoryKeys, UnusableKeyFile
from velaray.journal.encryption.keys import LedgerKeys
from velaray.journal.encryption.parts import TAG_SIZE, Decryptor
from velaray.journal.errors import (
    CorruptJournal,
    JournalError,
    MissingKey,
    PlainLedger,
    StorageFull,
)
from velaray.journal.journal import Journal, JournalSettings
from velaray.journal.manifest import FORMAT_VERSION, decode_manifest
from velaray.journal.memory import MemoryStore
from velaray.journal.recovery import check_keys
from velaray.journal.replay import load_manifest, replay, verify
from velaray.journal.scan import LedgerReader, read_header
from velaray.journal.store import LedgerStore
from velaray.wire.frames import seal_entry

EVENTS = [b"event-%d" % number for number in range(6)]
BLOBS = [seal_entry(b"\0\0\0\0" + b"%d" % number * 8) for number in range(5)]
OTHER = "partition/public/default/events/0/2"
"""It is as long as `KEY`, so the frames of both have the same offsets."""
HEAD = 12
"""Bytes of a payload before its first part."""


def write_key(folder: Path, name: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(b64encode(os.urandom(32)) + b"\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "keys"
    write_key(found, "001")
    return found


def keys_in(folder: Path) -> LedgerKeys:
    """Those of another process: it remembers nothing."""
    return LedgerKeys(DirectoryKeys(folder))


def opened(backend: Backend | ObjectBackend, folder: Path | None) -> LedgerStore:
    store = backend.store()
    store.keys = None if folder is None else keys_in(folder)
    return store


async def stored_bytes(backend: Backend | ObjectBackend) -> bytes:
    """Everything that is stored."""
    if isinstance(backend, S3Backend):
        return b"".join((await content_of(backend.url)).values())
    if isinstance(backend, ObjectBackend):
        return b"".join(each.data for each in backend.bucket.objects.values())
    if isinstance(backend, MemoryBackend):
        ledgers = [
            bytes(file.seen)
            for files in backend.disk._journals.values()
            for file in (*files.ledgers.values(), *files.marks.values())
        ]
        manifests = [files.manifest for files in backend.disk._journals.values()]
        return b"".join([*ledgers, *manifests])
    return b"".join(path.read_bytes() for path in backend.root.rglob("*") if path.is_file())


async def write_frames(store: LedgerStore, key: str = KEY) -> Journal:
    """One frame of five entries and an event, and a later frame."""
    journal = await started(store, key)
    for event, blob in zip(EVENTS, [*BLOBS, None], strict=True):
        journal.stage(event, blob)
    await journal.commit()
    journal.stage(b"later", seal_entry(b"\0\0\0\0later"))
    await journal.commit()
    return journal


@on_loop
async def _round_trip(backend: Backend | ObjectBackend, folder: Path) -> None:
    journal = await write_frames(opened(backend, folder))
    expected = [*BLOBS, seal_entry(b"\0\0\0\0later")]
    assert await blobs(journal) == expected
    await journal.roll({"events": b"\n".join([*EVENTS, b"later"]), "other": b"segment"}, b"digest")
    journal.stage(b"newest", b"x" * 40_000)
    await journal.commit()
    await journal.close()
    content = await stored_bytes(backend)
    assert content
    for plain in (*EVENTS, *BLOBS, b"later", b"segment", b"newest", b"xxxx", b"digest"):
        assert plain not in content
    journal = await open_journal(opened(backend, folder))
    assert events_of(journal) == [*EVENTS, b"later", b"newest"]
    await journal.start(
        {"events": b"", "other": journal.recovered.checkpoint.stored["other"]}, b"digest"
    )
    assert await journal.read_segment(journal.stored["other"]) == b"segment"
    assert await blobs(journal) == [*expected, b"x" * 40_000]
    reports = await verify(opened(backend, folder), KEY)
    assert [report.problems for report in reports] == [[], [], []]
    assert [report.entries for report in reports] == [6, 1, 0]


def test_events_entries_and_checkpoints_are_stored_encrypted(backend, folder: Path) -> None:
    _round_trip(backend, folder)


# -- damage ------------------------------------------------------------------------


async def places(store: LedgerStore, ledger_id: int) -> tuple[int, int, list[tuple[int, int]]]:
    """The first frame of history: its start and end, and where the parts with blobs are."""
    (info,) = [
        each for each in (await load_manifest(store, KEY)).ledgers if each.ledger_id == ledger_id
    ]
    start = info.data_offset
    at = start + frames.FRAME_HEADER_SIZE + HEAD + TAG_SIZE
    at += sum(len(event) + frames.RECORD_HEADER_SIZE for event in EVENTS)
    found = []
    for blob in BLOBS:
        found.append((at, at + len(blob) + TAG_SIZE))
        at += len(blob) + TAG_SIZE
    return start, at, found


async def read_one(journal: Journal, ledger_id: int, entry: int) -> bytes | None:
    try:
        found = await journal.read(Position(ledger_id, entry), 1, 1 << 20)
    except CorruptJournal as error:
        assert f"entry {ledger_id}:{entry}" in str(error)
        return None
    return bytes(found[0].blob)


async def check_lost(store: LedgerStore, ledger_id: int, lost: set[int]) -> None:
    """All events are recovered, and all entries but those."""
    journal = await open_journal(store)
    assert events_of(journal) == [*EVENTS, b"later"]
    await journal.start({"events": b""}, b"digest")
    for entry, blob in enumerate(BLOBS):
        assert await read_one(journal, ledger_id, entry) == (None if entry in lost else blob)
    found = await find_damage(store, KEY, journal.ledgers)
    assert {entry for each in found for entry in range(each.first, each.end)} == lost
    replayed = [each.blob is None async for each in replay(store, KEY, ledger_id)]
    assert replayed == [entry in {*lost, 5} for entry in range(7)]


@on_loop
async def _every_byte(folder: Path) -> None:
    clean = MemoryBackend()
    ledger_id = (await write_frames(opened(clean, folder))).ledgers[-1].ledger_id
    start, end, parts = await places(clean.store(), ledger_id)
    outcomes = []
    for at in range(start, end):
        backend = MemoryBackend()
        await write_frames(opened(backend, folder))
        whole = backend.content(ledger_id)
        backend.put(ledger_id, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        inside = {number for number, (first, stop) in enumerate(parts) if first <= at < stop}
        if inside:
            await check_lost(opened(backend, folder), ledger_id, inside)
            outcomes.append("entry")
            continue
        with pytest.raises(CorruptJournal):
            await open_journal(opened(backend, folder))
        outcomes.append("refused")
    assert outcomes.count("entry") == sum(len(blob) + TAG_SIZE for blob in BLOBS)


def test_a_changed_byte_of_a_blob_loses_its_entry_and_any_other_is_refused(folder: Path) -> None:
    _every_byte(folder)


async def rewrite(backend: MemoryBackend, ledger_id: int, at: int, payload: bytes) -> None:
    """Replace the payload of a frame, with right checksums, as an attacker can."""
    whole = backend.content(ledger_id)
    header = await read_header(backend.store(), KEY, ledger_id)
    found = frames.decode_frame_header(header.salt, at, whole, at)
    assert found is not None and found.length == len(payload)
    raw = frames.encode_frame(
        *(header.salt, at, found.sequence, found.entry, found.records, [payload]),
        flags=found.kind,
        lag=found.lag,
        at_ms=found.at_ms,
    )
    end = at + len(raw) + len(payload)
    backend.put(ledger_id, whole[:at] + raw + payload + whole[end:])


@on_loop
async def _moved_blobs(folder: Path) -> None:
    backend = MemoryBackend()
    ledger_id = (await write_frames(opened(backend, folder))).ledgers[-1].ledger_id
    start, end, parts = await places(backend.store(), ledger_id)
    base = start + frames.FRAME_HEADER_SIZE
    payload = backend.content(ledger_id)[base:end]
    (a, b), (c, d) = [(first - base, stop - base) for first, stop in parts[1:3]]
    moved = payload[:a] + payload[c:d] + payload[a:b] + payload[d:]
    await rewrite(backend, ledger_id, start, moved)
    await check_lost(opened(backend, folder), ledger_id, {1, 2})


def test_blobs_that_changed_places_are_lost_although_the_checksums_are_right(folder: Path) -> None:
    _moved_blobs(folder)


@on_loop
async def _moved_frames(folder: Path) -> None:
    backend = MemoryBackend()
    journal = await started(opened(backend, folder))
    ends = [journal.ledgers[-1].bytes]
    for name in (b"first", b"other"):
        journal.stage(name, seal_entry(b"\0\0\0\0" + name))
        await journal.commit()
        ends.append(journal.ledgers[-1].bytes)
    ledger_id = journal.ledgers[-1].ledger_id
    size = frames.FRAME_HEADER_SIZE
    content = backend.content(ledger_id)
    await rewrite(backend, ledger_id, ends[0], content[ends[1] + size : ends[2]])
    with pytest.raises(CorruptJournal, match="isn't what the ledger's owner encrypted"):
        await open_journal(opened(backend, folder))


def test_a_frame_at_the_place_of_another_is_refused(folder: Path) -> None:
    _moved_frames(folder)


@on_loop
async def _copied_ledger(folder: Path) -> None:
    backend = MemoryBackend()
    store = opened(backend, folder)
    ledger_id = (await write_frames(store)).ledgers[-1].ledger_id
    other_id = (await write_frames(store, OTHER)).ledgers[-1].ledger_id
    content, header = backend.content(ledger_id), await read_header(store, KEY, ledger_id)
    renamed = frames.encode_ledger_header(other_id, OTHER, header.epoch, header.salt, header.key)
    backend.put(other_id, renamed + content[header.size :], OTHER)
    reader = await LedgerReader.open(opened(backend, folder), OTHER, other_id)
    assert reader.header.size == header.size
    first = await anext(reader.whole(reader.header.size, len(content)))
    with pytest.raises(CorruptJournal, match="isn't what the ledger's owner encrypted"):
        list(reader.segments(first))


def test_a_ledger_under_the_name_of_another_journal_is_refused(folder: Path) -> None:
    _copied_ledger(folder)


@on_loop
async def _moved_segment(folder: Path) -> None:
    backend = MemoryBackend()
    journal = await open_journal(opened(backend, folder))
    await journal.start({"a": b"one", "b": b"two"}, b"digest")
    places = journal.stored
    content = bytearray(backend.content(journal.ledgers[-1].ledger_id))
    size = 3 + TAG_SIZE + 8
    a, b = (places[name].offset for name in "ab")
    content[a : a + size], content[b : b + size] = content[b : b + size], content[a : a + size]
    backend.put(journal.ledgers[-1].ledger_id, bytes(content))
    for name in "ab":
        with pytest.raises(CorruptJournal, match=f"segment '{name}' is damaged"):
            await journal.read_segment(places[name])
    with pytest.raises(CorruptJournal):
        await journal.read_segment(replace(places["a"], offset=len(content) - 3))


def test_a_segment_at_another_place_is_refused(folder: Path) -> None:
    _moved_segment(folder)


@on_loop
async def _full_disk(folder: Path) -> None:
    backend = MemoryBackend()
    store = opened(backend, folder)
    journal = await started(store)
    tried: list[bytes] = []
    writer, append = journal._writer, journal._writer.append

    async def full(buffers: Sequence[bytes], **others: object) -> bool:
        tried.append(b"".join(buffers))
        raise StorageFull("disk", "no space")

    writer.append = full
    for blob in (b"first try", b"other try"):
        journal.stage(b"event", blob)
        with pytest.raises(StorageFull):
            await journal.commit()
    writer.append = append
    journal.stage(b"event", b"last  try")
    await journal.commit()
    numbers = {raw[frames.FRAME_HEADER_SIZE :][:8] for raw in tried}
    start = journal.ledgers[-1].data_offset + frames.FRAME_HEADER_SIZE
    numbers.add(backend.content(journal.ledgers[-1].ledger_id)[start:][:8])
    assert len(numbers) == 3
    assert await blobs(journal) == [b"last  try"]


def test_a_refused_frame_and_the_next_at_its_offset_have_different_nonces(folder: Path) -> None:
    _full_disk(folder)


@on_loop
async def _looks_like_an_entry(folder: Path) -> None:
    backend = MemoryBackend()
    journal = await started(opened(backend, folder))
    encryptor = journal._encryptor
    assert encryptor is not None
    encryptor._encrypt = lambda nonce, plain, place: b"\x0e\x01" + bytes(len(plain) + 14)
    journal.stage(b"event", bytes(frames.LARGE))
    await journal.commit()
    await journal.close()
    (report,) = await verify(backend.store(), KEY, keyless=True)
    assert (report.problems, report.records) == ([], 1)


def test_an_encrypted_entry_that_begins_like_a_plain_one_has_a_right_checksum(folder: Path) -> None:
    _looks_like_an_entry(folder)


# -- keys --------------------------------------------------------------------------


@on_loop
async def _missing_key(backend: Backend | ObjectBackend, folder: Path, empty: Path) -> None:
    journal = await write_frames(opened(backend, folder))
    await journal.close()
    ledger_id = journal.ledgers[-1].ledger_id
    before, content = await backend.store().read_manifest(KEY), await stored_bytes(backend)
    for keys in (None, empty):
        store = opened(backend, keys)
        place = "" if keys is None else str(keys)
        for reading in (
            lambda store: open_journal(store),
            lambda store: LedgerReader.open(store, KEY, ledger_id),
            lambda store: anext(replay(store, KEY)),
        ):
            with pytest.raises(MissingKey) as caught:
                await reading(store)
            found = caught.value
            assert (found.file, found.key_id) == (store.location(KEY, ledger_id), "001")
            assert found.place == place and (place or "--encryption-keys") in str(found)
    assert await backend.store().read_manifest(KEY) == before
    assert await stored_bytes(backend) == content
    journal = await open_journal(opened(backend, folder))
    assert events_of(journal) == [*EVENTS, b"later"]


def test_a_missing_key_is_named_and_changes_nothing(backend, folder, tmp_path: Path) -> None:
    write_key(tmp_path / "others", "000")
    _missing_key(backend, folder, tmp_path / "others")


@on_loop
async def _recovery_opens_no_blob(
    backend: Backend | ObjectBackend, folder: Path, opened_sizes: list[int]
) -> None:
    journal = await write_frames(opened(backend, folder))
    await journal.close()
    opened_sizes.clear()
    journal = await open_journal(opened(backend, folder))
    assert events_of(journal) == [*EVENTS, b"later"]
    assert (journal.ledgers[-1].records, journal.ledgers[-1].entries) == (7, 6)
    sizes = {len(blob) + TAG_SIZE for blob in BLOBS}
    assert opened_sizes and not sizes & set(opened_sizes)
    await journal.start({"events": b""}, b"digest")
    assert len(await blobs(journal)) == 6
    assert sizes <= set(opened_sizes)


def test_recovery_decrypts_events_alone(
    backend, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    original = Decryptor._opened

    def noted(self: Decryptor, number: int, stored: bytes, place: bytes) -> bytes | None:
        sizes.append(len(stored))
        return original(self, number, stored, place)

    monkeypatch.setattr(Decryptor, "_opened", noted)
    _recovery_opens_no_blob(backend, folder, sizes)


@on_loop
async def _plain_refused(backend: Backend | ObjectBackend, folder: Path) -> None:
    journal = await write_frames(opened(backend, None))
    await journal.close()
    plain = journal.ledgers[-1].ledger_id
    before, content = await backend.store().read_manifest(KEY), await stored_bytes(backend)
    strict = backend.store()
    strict.keys = LedgerKeys(DirectoryKeys(folder), required=True)
    for reading in (
        lambda: open_journal(strict),
        lambda: LedgerReader.open(strict, KEY, plain),
        lambda: anext(replay(strict, KEY)),
    ):
        with pytest.raises(PlainLedger, match="--encryption-required") as caught:
            await reading()
        assert caught.value.file == strict.location(KEY, plain)
    assert await backend.store().read_manifest(KEY) == before
    assert await stored_bytes(backend) == content
    for _ in range(2):  # keys alone accept it
        journal = await open_journal(opened(backend, folder))
        await journal.start({"events": b""}, b"digest")
        journal.stage(b"newest", seal_entry(b"\0\0\0\0newest"))
        await journal.commit()
        await journal.close()
    journal = await open_journal(strict)  # no recovery needs the plain one
    await journal.start({"events": b""}, b"digest")
    with pytest.raises(PlainLedger):
        await journal.read(Position(plain, 0), 1, 1 << 20)
    encrypted = journal.ledgers[1].ledger_id
    (found,) = await journal.read(Position(encrypted, 0), 1, 1 << 20)
    assert bytes(found.blob) == seal_entry(b"\0\0\0\0newest")


def test_plain_ledgers_are_refused_if_encryption_is_required(backend, folder: Path) -> None:
    _plain_refused(backend, folder)


@on_loop
async def _another_key(folder: Path) -> None:
    backend = MemoryBackend()
    await write_frames(opened(backend, folder))
    write_key(folder, "001")
    with pytest.raises(MissingKey, match="001 is another key of this id"):
        await open_journal(opened(backend, folder))
    (folder / "001").write_text("no key")
    with pytest.raises(MissingKey, match="holds no key"):
        await open_journal(opened(backend, folder))


def test_a_file_with_another_key_is_named(folder: Path) -> None:
    _another_key(folder)


@on_loop
async def _rotation(backend: Backend | ObjectBackend, folder: Path) -> None:
    store = opened(backend, folder)
    journal = await write_frames(store)
    write_key(folder, "002")
    await journal.roll({"events": b"\n".join([*EVENTS, b"later"])}, b"digest")
    journal.stage(b"newest", seal_entry(b"\0\0\0\0newest"))
    await journal.commit()
    assert [info.key_id for info in journal.ledgers] == ["001", "002"]
    assert len(await blobs(journal)) == 7
    await journal.close()
    journal = await open_journal(opened(backend, folder))
    await journal.start({"events": b""}, b"digest")
    assert len(await blobs(journal)) == 7
    old, new = journal.ledgers[0].ledger_id, journal.ledgers[1].ledger_id
    await journal.close()
    (folder / "001").unlink()
    journal = await open_journal(opened(backend, folder))  # no recovery needs the old ledger
    await journal.start({"events": b""}, b"digest")
    with pytest.raises(MissingKey, match=r"encrypted with key 001; .*/keys, which has no key"):
        await journal.read(Position(old, 0), 1, 1 << 20)
    (found,) = await journal.read(Position(new, 0), 1, 1 << 20)
    assert bytes(found.blob) == seal_entry(b"\0\0\0\0newest")


def test_a_new_key_is_used_for_new_ledgers_and_the_old_one_for_old_ledgers(backend, folder) -> None:
    _rotation(backend, folder)


@on_loop
async def _mixed(backend: Backend | ObjectBackend, folder: Path) -> None:
    journal = await started(backend.store())
    journal.stage(EVENTS[0], BLOBS[0])
    await journal.commit()
    await journal.close()
    assert EVENTS[0] in await stored_bytes(backend)
    journal = await open_journal(opened(backend, folder))
    stored = journal.recovered.checkpoint.stored
    await journal.start({**stored, "more": b"segment"}, b"digest")
    assert await journal.read_segment(journal.stored["events"]) == b""
    assert await journal.read_segment(journal.stored["more"]) == b"segment"
    journal.stage(EVENTS[1], BLOBS[1])
    await journal.commit()
    assert [info.key_id for info in journal.ledgers] == ["", "001"]
    assert await blobs(journal) == BLOBS[:2]


def test_plain_ledgers_stay_readable_with_keys(backend, folder) -> None:
    _mixed(backend, folder)


@on_loop
async def _formats(folder: Path) -> None:
    for keys, ledger, manifest in ((None, 2, 2), (folder, 3, FORMAT_VERSION)):
        backend = MemoryBackend()
        journal = await started(opened(backend, keys))
        stored = await backend.store().read_manifest(KEY)
        assert stored.data[8] == manifest
        assert backend.content(journal.ledgers[-1].ledger_id)[8] == ledger
        assert decode_manifest("", stored.data).ledgers == journal.ledgers


def test_only_encrypted_data_has_a_format_that_older_versions_refuse(folder: Path) -> None:
    _formats(folder)


class Counting:
    """A provider that counts calls, and may be down."""

    place = "a service"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.newest, self.down, self.size = "a", False, 0

    def newest_id(self) -> str:
        if self.down:
            raise OSError("no answer")
        return self.newest

    def wrap(self, key: bytes) -> tuple[str, bytes]:
        self.calls.append("wrap")
        if self.down:
            raise OSError("no answer")
        return self.newest, key[::-1] + bytes(self.size)

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        self.calls.append("unwrap")
        if self.down:
            raise OSError("no answer")
        return wrapped[::-1]


@on_loop
async def _provider() -> None:
    backend, provider = MemoryBackend(), Counting()

    def store() -> MemoryStore:
        found = backend.store()
        found.keys = LedgerKeys(provider)
        return found

    first = store()
    for number in range(20):
        await (await started(first, f"{KEY}{number}")).close()
    assert provider.calls == ["wrap"]
    provider.calls.clear()
    second = store()
    for number in range(20):
        await started(second, f"{KEY}{number}")
    assert provider.calls == ["unwrap", "wrap"]
    provider.down = True
    await started(second, f"{KEY}more")  # its process key stays in use
    with pytest.raises(MissingKey, match="a service, which can't be used: no answer"):
        await started(store(), f"{KEY}0")
    with pytest.raises(MissingKey, match=r"to be encrypted with a new key; .*no answer"):
        await started(store(), f"{KEY}another")
    provider.down, provider.newest, provider.size = False, "b", 5000
    with pytest.raises(JournalError, match="more than 4096 bytes"):
        await started(second, f"{KEY}last")


def test_a_provider_is_asked_once_for_each_process() -> None:
    _provider()


@on_loop
async def _slow_provider() -> None:
    """A call that waits for the provider keeps no loop and no known key waiting."""
    backend, provider = MemoryBackend(), Counting()
    store = backend.store()
    store.keys = keys = LedgerKeys(provider)
    header = await read_header(store, KEY, (await started(store)).ledgers[-1].ledger_id)
    assert header.key is not None
    entered, go_on = threading.Event(), threading.Event()

    def unwrap(key_id: str, wrapped: bytes) -> bytes:
        entered.set()
        assert go_on.wait(60)
        return wrapped[::-1]

    provider.unwrap = unwrap
    unknown = replace(header.key, wrapped=bytes(32))
    waiting = asyncio.create_task(keys.find("file", unknown, b""))
    await asyncio.to_thread(entered.wait, 60)
    key = await keys.find("file", header.key, header.key_context)
    assert not waiting.done()
    go_on.set()
    assert len(await waiting) == len(key) == 32


def test_known_keys_are_found_while_the_provider_is_slow() -> None:
    _slow_provider()


def test_key_files_are_checked(tmp_path: Path) -> None:
    keys = DirectoryKeys(tmp_path / "keys")
    with pytest.raises(OSError):
        keys.check()
    (tmp_path / "keys").mkdir()
    with pytest.raises(UnusableKeyFile, match="has no file with a key: make one with `openssl"):
        keys.check()
    write_key(tmp_path / "keys", "b")
    write_key(tmp_path / "keys", "a")
    (tmp_path / "keys" / ".hidden").write_text("no key")
    keys.check()
    assert keys.newest_id() == "b"
    for text in ("", "!", b64encode(bytes(31)).decode()):
        (tmp_path / "keys" / "a").write_text(text)
        with pytest.raises(UnusableKeyFile, match="a holds no key"):
            keys.check()


# -- without keys ------------------------------------------------------------------


@on_loop
async def _keyless(folder: Path) -> None:
    backend = MemoryBackend()
    journal = await write_frames(opened(backend, folder))
    await journal.roll({"events": b"\n".join([*EVENTS, b"later"])}, b"digest")
    await journal.close()
    reports = await verify(backend.store(), KEY, keyless=True)
    assert [(each.opened, each.records, each.problems) for each in reports] == [
        (False, 7, []),
        (False, 0, []),
    ]
    assert all(each.problems for each in await verify(backend.store(), KEY))
    ledger_id = journal.ledgers[0].ledger_id
    whole = backend.content(ledger_id)
    for at in range(len(whole)):
        backend.put(ledger_id, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        (report, _) = await verify(backend.store(), KEY, keyless=True)
        assert report.problems, at


def test_checksums_are_verified_without_keys(folder: Path) -> None:
    _keyless(folder)


@on_loop
async def _nothing_needed(folder: Path) -> None:
    backend = MemoryBackend()
    await check_keys(backend.store(), KEY, ())
    journal = await started(opened(backend, folder))
    await check_keys(opened(backend, folder), KEY, journal.ledgers)
    with pytest.raises(MissingKey):
        await check_keys(backend.store(), KEY, journal.ledgers)


def test_a_journal_without_ledgers_needs_no_key(folder: Path) -> None:
    _nothing_needed(folder)


def test_settings_of_rolls_apply(folder: Path) -> None:
    """The sizes that start the next ledger are those of the stored bytes."""

    async def run() -> int:
        store = opened(MemoryBackend(), folder)
        journal = await started(store, settings=JournalSettings(roll_bytes=4096))
        journal.stage(b"event", bytes(3500))
        await journal.commit()
        assert not journal.should_roll
        journal.stage(b"event", bytes(500))
        await journal.commit()
        assert journal.should_roll
        place = journal.stored["events"]
        assert isinstance(place, StoredSegment)
        return place.size

    assert asyncio.run(run()) == 0
