"""The place of a cluster's archive, as its data directory names it.

The file ``offload`` in the directory has the URL and the id of the archive. It is written once.
"""

from __future__ import annotations

import os
import random
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgpack

from velaray.events.portable import PortableError
from velaray.journal.errors import CorruptJournal
from velaray.journal.objects.bodies import Kind, decode_body, encode_record
from velaray.journal.objects.conditional import ConditionalObjects, Taken
from velaray.journal.objects.object_store import ObjectStore, StoreRefused
from velaray.journal.objects.remote_objects import open_objects
from velaray.journal.offload.archive import LedgerArchive
from velaray.journal.offload.directory_objects import DirectoryObjects, sync_directory
from velaray.journal.private import make_private, private_opener

OFFLOAD: Final = "offload"
"""The name of the file in the data directory."""
_OWNER: Final = "owner"
"""The object that is written first, which shows that the archive can be written and read."""
_ID_BYTES: Final = 8


class OtherArchive(PortableError):
    """The ledgers of a data directory are offloaded to another place than the given one."""


@dataclass(frozen=True, slots=True)
class ArchivePlace:
    """A URL, and the id with which the names of this cluster's objects begin there."""

    url: str
    id: str

    def objects(self) -> ConditionalObjects:
        """The requests to the archive. Raises `StoreRefused`."""
        return ConditionalObjects(_objects_at(self.url, self.id), os.urandom, random)

    def archive(self) -> LedgerArchive:
        """The archive. No request is made. Raises `StoreRefused`."""
        return LedgerArchive(self.objects())


def _objects_at(url: str, folder: str) -> ObjectStore:
    parts = urlsplit(url)
    if parts.scheme != "file":
        return open_objects(f"{url}/{folder}")
    if parts.netloc or not parts.path.startswith("/") or parts.query or parts.fragment:
        raise StoreRefused(url, "not the URL of a directory", "use file:///path")
    return DirectoryObjects(Path(unquote(parts.path)) / folder)


def known_place(data_dir: Path) -> ArchivePlace | None:
    """The archive of a data directory; None if its ledgers were never offloaded.

    Raises `CorruptJournal`, `OSError`.
    """
    path = data_dir / OFFLOAD
    try:
        url, archive_id = msgpack.unpackb(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CorruptJournal(str(path), 0, f"the place of the archive: {error}") from error
    return ArchivePlace(url, archive_id)


async def settle_place(data_dir: Path, url: str) -> None:
    """Make ``url`` the archive of a data directory that has none, and check that it can be used.

    Only one process may call it at a time. Raises `OtherArchive` if there is another one,
    `CorruptJournal` if another cluster uses the objects, and what the archive raises.
    """
    url = url.rstrip("/")
    place = known_place(data_dir)
    if place is not None and place.url != url:
        raise OtherArchive(
            f"the ledgers of {data_dir} are offloaded to {place.url}, not to {url}: start with "
            "that URL, or without one"
        )
    settled = place or ArchivePlace(url, secrets.token_hex(_ID_BYTES))
    objects = settled.objects()
    try:
        await _check(objects, settled.id)
    finally:
        await objects.objects.close()
    if place is None:
        _write(data_dir, settled)


async def _check(objects: ConditionalObjects, archive_id: str) -> None:
    """Write an object unless it is there, and read it back."""
    payload = encode_record(archive_id)
    with suppress(Taken):
        await objects.create(_OWNER, Kind.END, payload)
    found, place = await objects.get(_OWNER), objects.location(_OWNER)
    if found is None or decode_body(_OWNER, place, found.data, Kind.END).payload != payload:
        raise CorruptJournal(place, 0, "not the object that was written")


def _write(data_dir: Path, place: ArchivePlace) -> None:
    make_private(data_dir)
    path = data_dir / OFFLOAD
    temporary = path.with_name(f"{OFFLOAD}.new")
    with open(temporary, "wb", opener=private_opener) as file:
        file.write(msgpack.packb([place.url, place.id]))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(data_dir)
