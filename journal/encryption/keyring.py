"""The keyring: a data key for each subject of erasable namespaces, which an erasure destroys.

A *subject* is what a message is about, such as its key. It has a row: an HMAC of namespace and
subject, the number of its data key, and the data key. An erasure replaces the key by a tombstone.
A later message of the subject gets a key with the next number.

Rows are in shards, by the HMAC. A shard is encrypted as a whole, with a key that is random for
each write and that a master key wraps. So a version of a shard that was replaced can't be opened
any more when its master key is gone. The index has the secret of the HMAC, and counts the erasures.

A process may use data keys while it has a *lease*: it has read the index less than `LEASE_S` ago.
If the count of erasures has changed, it drops all rows. An erasure is complete when all leases that
began before it have ended. So no process has to be asked.

The keyring isn't part of any journal, backup, copy or archive: these would keep a destroyed key.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import struct
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

import msgpack

from velaray.events.backoff import Backoff, RandomSource
from velaray.journal.encryption.keyring_places import KeyringObjects
from velaray.journal.encryption.keys import KEY_BYTES, KeyProvider
from velaray.journal.errors import CorruptJournal, JournalError, MissingKey, UnsupportedFormat
from velaray.journal.objects.object_store import (
    ObjectChanged,
    ObjectExists,
    StoredObject,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FOLDER: Final = "keyring"
"""The folder of a keyring, beside the journals."""
LEASE_S: Final = 10.0
"""How long a process uses data keys after it has read the index."""
RENEW_S: Final = 4.0
"""The age of a lease at which it is renewed, if data keys are in use."""
AGAIN_S: Final = 1.0
"""The pause after a failed renewal."""
SAFETY_S: Final = 1.0
"""What an erasure waits longer than a lease, since clocks don't run alike."""
PATIENCE_S: Final = 30.0
"""How long a write is repeated while it loses against others, or gets no answer."""

ID_BYTES: Final = 16
_INDEX: Final = f"{FOLDER}/index"
_FORMAT: Final = 1
_ROW: Final = struct.Struct(f">{ID_BYTES}sI?{KEY_BYTES}s")
_PART: Final = struct.Struct(f">{ID_BYTES}sI12s")
_NO_NONCE: Final = bytes(12)
"""Each key of a shard encrypts one text, so the nonce may be constant."""
_LABEL: Final = b"velaray keyring 1 "
_MESSAGE: Final = b"velaray message 1 "
PART_OVERHEAD: Final = _PART.size + 16
"""Bytes that a sealed message has more than a plain one."""


class NoLease(JournalError):
    """The data keys can't be used now: the keyring wasn't read lately. Prepare, and try again."""


class LostDataKey(JournalError):
    """A message needs a data key that the keyring has never had: it isn't the keyring of this
    data, or a part of it is lost. The message isn't erased."""

    def __init__(self, file: str, subject_id: bytes, number: int) -> None:
        super().__init__(
            f"{file}: there is no data key {number} of subject {subject_id.hex()}: this keyring is "
            "another one than that of the data, or a part of it is lost; put the right one there"
        )
        self.file = file


class Part(NamedTuple):
    """The head of a sealed message: its subject's id, and the number of the data key."""

    subject_id: bytes
    number: int


class Erasure(NamedTuple):
    """The outcome of an erasure: the HMAC of the subject, and whether there was a data key."""

    digest: str
    existed: bool


@dataclass(slots=True)
class _Row:
    number: int
    key: bytes | None
    """None: erased."""


@dataclass(slots=True)
class _Shard:
    """One version of a shard."""

    tag: str | None
    """None: it isn't stored yet."""
    rows: dict[bytes, _Row] = field(default_factory=dict)


class _Index(NamedTuple):
    tag: str
    secret: bytes
    erasures: int


def now_s() -> float:
    """A clock for leases, which also counts the time for which the machine was suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def head_of(sealed: bytes | memoryview) -> Part:
    """What a sealed message says about its key. Raises `ValueError`."""
    if len(sealed) < PART_OVERHEAD:
        raise ValueError(f"a sealed message of {len(sealed)} bytes is too short")
    subject_id, number, _ = _PART.unpack_from(sealed)
    return Part(subject_id, number)


class Keyring:
    """The data keys of one cluster, as a process uses them on one event loop.

    `seal` and `open` are synchronous, and need what `prepare_to_seal` and `prepare_to_open` load.
    """

    def __init__(
        self,
        objects: KeyringObjects,
        provider: KeyProvider,
        source: RandomSource,
        clock_s: Callable[[], float] = now_s,
        random_bytes: Callable[[int], bytes] = os.urandom,
        lease_s: float | None = None,
        creates: bool = True,
    ) -> None:
        """``source`` gives the jitter of repeated writes. ``lease_s`` is by default `LEASE_S`; all
        processes must use the same. ``creates``: the keyring is made if there is none."""
        self._objects = objects
        self._provider = provider
        self._source = source
        self._clock_s = clock_s
        self._random_bytes = random_bytes
        self._lease_s = LEASE_S if lease_s is None else lease_s
        self._creates = creates
        self._lease_end = 0.0
        self._renew_at = 0.0
        self._index: _Index | None = None
        self._shards: dict[str, _Shard] = {}
        self._calls = Lock()  # held by a thread that calls the provider, never by the loop
        self._renewing = asyncio.Lock()
        self._writing: dict[str, asyncio.Lock] = {}
        self._background: asyncio.Task[None] | None = None

    def drop(self) -> None:
        """Drop all keys from memory; the next use loads them again."""
        if self._background is not None:
            self._background.cancel()
        self._lease_end = 0.0
        self._shards.clear()

    # -- the lease -----------------------------------------------------------------

    @property
    def leased(self) -> bool:
        """Whether data keys may be used now. A lease in use is renewed in time."""
        now = self._clock_s()
        if now >= self._renew_at and self._background is None:
            self._background = asyncio.get_running_loop().create_task(self._renew_soon())
        return now < self._lease_end

    async def _renew_soon(self) -> None:
        try:
            await self.renew()
        except JournalError:
            # The lease ends, and whoever needs a key then gets the error.
            self._renew_at = self._clock_s() + AGAIN_S
        finally:
            self._background = None

    async def renew(self) -> None:
        """Begin another lease. Raises `JournalError`."""
        async with self._renewing:
            began = self._clock_s()
            index = await self._read_index()
            if self._index is None or index.erasures != self._index.erasures:
                self._shards.clear()
            self._index = index
            self._lease_end = began + self._lease_s
            self._renew_at = began + min(RENEW_S, self._lease_s / 2)

    async def _read_index(self) -> _Index:
        until = asyncio.get_running_loop().time() + PATIENCE_S
        backoff = Backoff(0.05, 2.0, self._source)
        while (found := await self._objects.get(_INDEX)) is None:
            if await self._objects.list(f"{FOLDER}/") and await self._objects.get(_INDEX) is None:
                where = self._objects.location(_INDEX)  # it is made before all others
                raise CorruptJournal(where, 0, "the index is missing, and there are data keys")
            if not self._creates:
                where = self._objects.location(FOLDER)
                raise CorruptJournal(where, 0, "there is no keyring: put that of the data there")
            try:
                await self._write_index(None, self._random_bytes(KEY_BYTES), 0)
            except (ObjectExists, StoreUnavailable):
                if not await backoff.wait(until):
                    raise
        fields = self._fields(_INDEX, found.data, 5)
        known = self._index
        if known is not None and known.tag == found.tag:
            return known
        erasures = fields[4]
        assert isinstance(erasures, int)
        return _Index(found.tag, await self._opened(_INDEX, fields), erasures)

    async def _write_index(self, tag: str | None, secret: bytes, erasures: int) -> None:
        data = await self._sealed(_INDEX, secret, erasures)
        await self._put(_INDEX, data, tag)

    async def _put(self, name: str, data: bytes, tag: str | None) -> str:
        if tag is None:
            return await self._objects.create(name, data)
        return await self._objects.replace(name, data, tag)

    # -- sealing and opening -------------------------------------------------------

    def subject_id(self, namespace: str, subject: str) -> bytes:
        """The HMAC that stands for a subject. Raises `NoLease` before the first lease."""
        if self._index is None:
            raise NoLease("the keyring wasn't read yet")
        text = f"{namespace}\0{subject}".encode(errors="surrogatepass")
        return hmac.digest(self._index.secret, text, "sha256")[:ID_BYTES]

    def can_seal(self, namespace: str, subjects: Iterable[str]) -> bool:
        """Whether `seal` has the keys of these subjects in memory, under a lease."""
        if not self.leased:
            return False
        return all(self._key_for(self.subject_id(namespace, each)) for each in subjects)

    def _key_for(self, subject_id: bytes) -> _Row | None:
        shard = self._shards.get(_shard_of(subject_id))
        row = None if shard is None else shard.rows.get(subject_id)
        return None if row is None or row.key is None else row

    async def prepare_to_seal(self, namespace: str, subjects: Collection[str]) -> None:
        """Load the keys of these subjects; those without one get one, durably.

        Raises `JournalError`. A lease that ends meanwhile is renewed.
        """
        until = asyncio.get_running_loop().time() + PATIENCE_S
        while not self.can_seal(namespace, subjects):
            if asyncio.get_running_loop().time() > until:
                raise NoLease(f"{self._objects.location(FOLDER)}: its keys change all the time")
            await self._lease()
            by_shard: dict[str, set[bytes]] = {}
            for subject in subjects:
                found = self.subject_id(namespace, subject)
                by_shard.setdefault(_shard_of(found), set()).add(found)
            for shard, ids in by_shard.items():
                await self._add(shard, ids)

    async def _lease(self) -> None:
        if not self.leased:
            await self.renew()

    def seal(self, namespace: str, subject: str, plain: bytes | memoryview) -> bytes:
        """A sealed message. Raises `NoLease` unless `can_seal` is true."""
        subject_id = self.subject_id(namespace, subject)
        row = self._key_for(subject_id)
        if row is None or row.key is None or not self.leased:
            raise NoLease(f"the data key of subject {subject_id.hex()} isn't in use here")
        head = _PART.pack(subject_id, row.number, self._random_bytes(12))
        return head + _cipher(row.key).encrypt(head[-12:], plain, _MESSAGE + head[:-12])

    def can_open(self, parts: Iterable[Part]) -> bool:
        """Whether `open` has what it needs in memory, under a lease."""
        return self.leased and all(_shard_of(each.subject_id) in self._shards for each in parts)

    async def prepare_to_open(self, parts: Collection[Part]) -> None:
        """Load the keys of these messages. Raises `LostDataKey`, or another `JournalError`."""
        until = asyncio.get_running_loop().time() + PATIENCE_S
        while not self.can_open(parts):
            if asyncio.get_running_loop().time() > until:
                raise NoLease(f"{self._objects.location(FOLDER)}: its keys change all the time")
            await self._lease()
            for shard in {_shard_of(each.subject_id) for each in parts} - self._shards.keys():
                await self._load(shard)
        for each in parts:
            if self._is_lost(each):
                where = self._objects.location(_shard_of(each.subject_id))
                raise LostDataKey(where, *each)

    def _is_lost(self, part: Part) -> bool:
        row = self._shards[_shard_of(part.subject_id)].rows.get(part.subject_id)
        return row is None or part.number > row.number

    def open(self, sealed: bytes | memoryview) -> bytes | None:
        """The plain message; None if its key was destroyed.

        Raises `NoLease` unless `can_open` is true, `LostDataKey`, and `CorruptJournal` if the
        message was changed.
        """
        from cryptography.exceptions import InvalidTag  # a large library

        part = head_of(sealed)
        shard = _shard_of(part.subject_id)
        if not self.leased or shard not in self._shards:
            raise NoLease(f"the data keys of {shard} aren't in use here")
        if self._is_lost(part):
            raise LostDataKey(self._objects.location(shard), *part)
        row = self._shards[shard].rows[part.subject_id]
        if row.key is None or part.number < row.number:
            return None
        view = memoryview(sealed)
        head = bytes(view[: _PART.size])
        try:
            return _cipher(row.key).decrypt(head[-12:], view[_PART.size :], _MESSAGE + head[:-12])
        except InvalidTag as error:
            raise CorruptJournal("a sealed message", 0, "its tag is wrong") from error

    # -- shards --------------------------------------------------------------------

    async def _load(self, name: str) -> None:
        """Read the current version of a shard, which stays in memory."""
        while True:
            index = self._index
            shard = await self._read_shard(name)
            now = self._index
            if index is not None and now is not None and index.erasures == now.erasures:
                self._shards[name] = shard
                return
            await self._lease()  # it may be a version from before an erasure

    async def _read_shard(self, name: str) -> _Shard:
        found = await self._objects.get(name)
        if found is None:
            return _Shard(None)
        raw = await self._opened(name, self._fields(name, found.data, 4))
        rows = {
            subject_id: _Row(number, key if exists else None)
            for subject_id, number, exists, key in _ROW.iter_unpack(raw)
        }
        return _Shard(found.tag, rows)

    async def _write_shard(self, name: str, shard: _Shard) -> None:
        rows = b"".join(
            _ROW.pack(each, row.number, row.key is not None, row.key or bytes(KEY_BYTES))
            for each, row in shard.rows.items()
        )
        data = await self._sealed(name, rows)
        shard.tag = await self._put(name, data, shard.tag)

    async def _add(self, name: str, ids: Collection[bytes]) -> None:
        """Give subjects of one shard data keys, durably, unless they have them."""

        def add(shard: _Shard) -> bool:
            missing = [each for each in ids if not _has_key(shard, each)]
            for each in missing:
                former = shard.rows.get(each)
                number = 1 if former is None else former.number + 1
                shard.rows[each] = _Row(number, self._random_bytes(KEY_BYTES))
            return bool(missing)

        async with self._writing.setdefault(name, asyncio.Lock()):
            shard = self._shards.get(name)
            if shard is not None and all(_has_key(shard, each) for each in ids):
                return
            await self._change(name, add)
            await self._load(name)

    async def _change(self, name: str, change: Callable[[_Shard], bool]) -> None:
        """Change a shard durably, whatever others write meanwhile. ``change`` returns whether it
        changed anything. After a lost answer the shard is read again."""
        until = asyncio.get_running_loop().time() + PATIENCE_S
        backoff = Backoff(0.05, 2.0, self._source)
        while True:
            try:
                shard = await self._read_shard(name)
                if change(shard):
                    await self._write_shard(name, shard)
                return
            except (ObjectExists, ObjectChanged, StoreUnavailable):
                if not await backoff.wait(until):
                    raise

    # -- erasure -------------------------------------------------------------------

    async def digest(self, namespace: str, subject: str) -> str:
        """The HMAC that stands for a subject, in hexadecimal digits. Raises `JournalError`."""
        await self._lease()
        return self.subject_id(namespace, subject).hex()

    async def erase(self, namespace: str, subject: str) -> Erasure:
        """Destroy the data key of a subject; returns when no process can use it any more.

        Messages of the subject that are published meanwhile may be erased too. Idempotent. Raises
        `JournalError` if the outcome is unknown: erase again.
        """
        await self.renew()
        subject_id = self.subject_id(namespace, subject)
        existed = False

        def destroy(shard: _Shard) -> bool:
            nonlocal existed
            row = shard.rows.get(subject_id)
            if row is None:
                return False
            existed = True
            changed = row.key is not None
            row.key = None
            return changed

        name = _shard_of(subject_id)
        await self._change(name, destroy)
        if existed:
            # Also if the key was gone already: a former erasure may have ended here.
            await self._count_erasure()
            self._shards.pop(name, None)
            await asyncio.sleep(self._lease_s + SAFETY_S)
        return Erasure(subject_id.hex(), existed)

    async def _count_erasure(self) -> None:
        """Let all processes drop their keys when they renew their leases."""
        until = asyncio.get_running_loop().time() + PATIENCE_S
        backoff = Backoff(0.05, 2.0, self._source)
        while True:
            index = await self._read_index()
            try:
                await self._write_index(index.tag, index.secret, index.erasures + 1)
                break
            except (ObjectChanged, StoreUnavailable):
                if not await backoff.wait(until):
                    raise
        await self.renew()

    # -- encryption of the objects -------------------------------------------------

    async def _sealed(self, name: str, raw: bytes, *more: int) -> bytes:
        key = self._random_bytes(KEY_BYTES)
        key_id, wrapped = await asyncio.to_thread(self._wrap, name, key)
        sealed = _cipher(key).encrypt(_NO_NONCE, raw, _LABEL + name.encode())
        packed: bytes = msgpack.packb([_FORMAT, key_id, wrapped, sealed, *more])
        return packed

    async def _opened(self, name: str, fields: list[object]) -> bytes:
        from cryptography.exceptions import InvalidTag  # a large library

        _, key_id, wrapped, sealed = fields[:4]
        assert isinstance(key_id, str)
        assert isinstance(wrapped, bytes)
        assert isinstance(sealed, bytes)
        key = await asyncio.to_thread(self._unwrap, name, key_id, wrapped)
        try:
            return _cipher(key).decrypt(_NO_NONCE, sealed, _LABEL + name.encode())
        except InvalidTag as error:
            raise CorruptJournal(self._objects.location(name), 0, "its tag is wrong") from error

    def _fields(self, name: str, data: bytes, count: int) -> list[object]:
        where = self._objects.location(name)
        return _fields(where, data, count)

    def _wrap(self, name: str, key: bytes) -> tuple[str, bytes]:
        with self._calls:
            try:
                return self._provider.wrap(key)
            except (LookupError, ValueError, OSError) as error:
                raise self._missing(name, "", error) from error

    def _unwrap(self, name: str, key_id: str, wrapped: bytes) -> bytes:
        with self._calls:
            try:
                return self._provider.unwrap(key_id, wrapped)
            except (LookupError, ValueError, OSError) as error:
                raise self._missing(name, key_id, error) from error

    def _missing(self, name: str, key_id: str, error: Exception) -> MissingKey:
        problem = f"which can't be used: {error}"
        if isinstance(error, LookupError):
            problem = "which has no key of this id"
        return MissingKey(self._objects.location(name), key_id, self._provider.place, problem)


async def master_keys_of(objects: KeyringObjects) -> dict[str, int]:
    """The number of objects of the keyring by the id of the master key that each needs. Raises
    `CorruptJournal`, `UnsupportedFormat`."""
    found: dict[str, int] = {}
    for name in await objects.list(f"{FOLDER}/"):
        stored: StoredObject | None = await objects.get(name)
        if stored is not None:
            key_id = str(_fields(objects.location(name), stored.data, 4)[1])
            found[key_id] = found.get(key_id, 0) + 1
    return found


def _fields(where: str, data: bytes, count: int) -> list[object]:
    """The unpacked fields of an object, at least ``count``."""
    try:
        fields = msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException) as error:
        raise CorruptJournal(where, 0, "it can't be unpacked") from error
    if not isinstance(fields, list) or not fields or not isinstance(fields[0], int):
        raise CorruptJournal(where, 0, "it is no part of a keyring")
    if fields[0] != _FORMAT:
        raise UnsupportedFormat(where, fields[0])
    types = (int, str, bytes, bytes, int)[:count]
    if len(fields) < count or not all(map(isinstance, fields, types)):
        raise CorruptJournal(where, 0, "it lacks fields")
    return fields


def _has_key(shard: _Shard, subject_id: bytes) -> bool:
    row = shard.rows.get(subject_id)
    return row is not None and row.key is not None


def _shard_of(subject_id: bytes) -> str:
    return f"{FOLDER}/{subject_id[:1].hex()}"


def _cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # a large library

    return AESGCM(key)
