"""The settings of a cluster as they travel to other processes: without its secrets.

Ray keeps the arguments of actors in its control service, sends them over its connections, and may
show them. So each process reads the secrets where the journals are: in the file
``secrets/INCARNATION`` of the data directory, which is readable by its owner alone, or in the
object of this name. Backups don't have it.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import msgpack

from velaray.journal.errors import CorruptJournal, MissingKey
from velaray.journal.objects.bodies import Kind, decode_body
from velaray.journal.objects.conditional import ConditionalObjects, Taken
from velaray.journal.objects.remote_objects import open_objects
from velaray.journal.private import make_private, private_opener
from velaray.topology.config import ClusterConfig, namespace_of
from velaray.topology.encryption_keys import key_provider
from velaray.topology.ownership import Superseded
from velaray.topology.stores import is_object_store

SECRETS: Final = "secrets"
_TOKEN_SECRET = "token_secret"
_LABEL: Final = b"velaray secrets 1"
_NONCE: Final = bytes(12)
"""Each key encrypts one text, so the nonce may be constant."""
_SECRET_FIELDS = ("rpc_key", "replication_secret")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SentConfig:
    """A `ClusterConfig` without its secrets: its other fields by name."""

    settings: Mapping[str, Any]

    def title(self, name: str) -> str:
        """How Ray calls an actor of this cluster: its namespace and its name."""
        return f"{namespace_of(self.settings['name'])}:{name}"

    def received(self) -> ClusterConfig:
        """The settings with the secrets, which are read. Blocks.

        Raises `Superseded` if this machine has no secrets of this start, `MissingKey` if it lacks
        their key, `OSError` or `JournalError` if they can't be read.
        """
        location, incarnation = self.settings["data_dir"], self.settings["incarnation"]
        raw = _read(location, incarnation)
        if raw is None:
            raise Superseded(
                f"no secrets of start {incarnation} in {location} on this machine: the start was "
                "replaced, or this machine doesn't see the directory"
            )
        keys = self.settings.get("encryption_keys", "")  # a former version lacks it
        place = f"{location}/{SECRETS}/{incarnation}"
        found: dict[str, Any] = msgpack.unpackb(_opened(keys, place, raw) if keys else raw)
        settings = dict(self.settings)
        token_secret = found.pop(_TOKEN_SECRET)
        if token_secret is not None:
            settings["auth"] = replace(settings["auth"], secret=token_secret)
        return ClusterConfig(**settings, **found)


def sent(config: ClusterConfig) -> SentConfig:
    """The settings without the secrets, for the arguments of actors."""
    names = (each.name for each in fields(config) if each.name not in _SECRET_FIELDS)
    settings = {name: getattr(config, name) for name in names}
    if config.auth is not None:
        settings["auth"] = replace(config.auth, secret=None)
    return SentConfig(settings)


def store_secrets(config: ClusterConfig) -> None:
    """Store the secrets of a start for its processes, and remove those of earlier starts. Blocks.

    They are encrypted with the configured keys, if any. Raises `OSError`, `KeyFileError`,
    `UnusableKeyFile` or `JournalError`.
    """
    found: dict[str, Any] = {name: getattr(config, name) for name in _SECRET_FIELDS}
    found[_TOKEN_SECRET] = config.auth.secret if config.auth is not None else None
    raw = msgpack.packb(found)
    if config.encryption_keys:
        raw = _encrypted(config.encryption_keys, raw)
    if is_object_store(config.data_dir):
        _with_objects(config.data_dir, lambda objects: _put(objects, config.incarnation, raw))
        return
    folder = Path(config.data_dir) / SECRETS
    make_private(folder)
    with open(folder / str(config.incarnation), "wb", opener=private_opener) as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    for path in folder.iterdir():
        if _is_earlier(path.name, config.incarnation):
            path.unlink(missing_ok=True)


def _encrypted(keys: str, raw: bytes) -> bytes:
    """The secrets, encrypted with a key of their own that a master key wraps."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # a large library

    key = AESGCM.generate_key(256)
    key_id, wrapped = key_provider(keys).wrap(key)
    packed: bytes = msgpack.packb([key_id, wrapped, AESGCM(key).encrypt(_NONCE, raw, _LABEL)])
    return packed


def _opened(keys: str, place: str, raw: bytes) -> bytes:
    """The inverse of `_encrypted`. Raises `MissingKey`, `CorruptJournal`."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    provider = key_provider(keys)
    try:
        key_id, wrapped, sealed = msgpack.unpackb(raw)
    except ValueError as error:
        raise CorruptJournal(place, 0, "the secrets aren't encrypted") from error
    try:
        key = provider.unwrap(key_id, wrapped)
    except LookupError as error:
        problem = "which has no key of this id"
        raise MissingKey(place, key_id, provider.place, problem) from error
    except (ValueError, OSError) as error:
        problem = f"which can't be used: {error}"
        raise MissingKey(place, key_id, provider.place, problem) from error
    try:
        return AESGCM(key).decrypt(_NONCE, sealed, _LABEL)
    except InvalidTag as error:
        raise CorruptJournal(place, 0, "the secrets aren't those that were encrypted") from error


def _is_earlier(name: str, incarnation: int) -> bool:
    return name.isdecimal() and int(name) < incarnation


def _read(location: str, incarnation: int) -> bytes | None:
    if is_object_store(location):
        return _with_objects(location, lambda objects: _get(objects, incarnation))
    with suppress(FileNotFoundError):
        return (Path(location) / SECRETS / str(incarnation)).read_bytes()
    return None


async def _put(objects: ConditionalObjects, incarnation: int, raw: bytes) -> None:
    name = f"{SECRETS}/{incarnation}"
    try:
        await objects.create(name, Kind.SECRETS, raw)
    except Taken as error:  # the data is a copy of an earlier state of this store
        tag = error.found.tag if error.found is not None else ""
        await objects.replace(name, Kind.SECRETS, raw, tag)
    names = await objects.list(f"{SECRETS}/")
    earlier = [each for each in names if _is_earlier(each.rpartition("/")[2], incarnation)]
    await objects.delete(earlier)


async def _get(objects: ConditionalObjects, incarnation: int) -> bytes | None:
    name = f"{SECRETS}/{incarnation}"
    found = await objects.get(name)
    if found is None:
        return None
    place = objects.location(name)
    return bytes(decode_body(name, place, found.data, Kind.SECRETS).payload)


def _with_objects(location: str, work: Callable[[ConditionalObjects], Awaitable[T]]) -> T:
    """The result of ``work``, also when the caller runs an event loop."""

    async def run() -> T:
        store = open_objects(location)
        try:
            return await work(ConditionalObjects(store, os.urandom, random))
        finally:
            await store.close()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, run()).result()
