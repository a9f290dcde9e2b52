"""The object stores of clouds, and S3-compatible servers, through obstore.

obstore repeats nothing here, because a conditional write that is repeated below this module would
find its own effect. `velaray.journal.objects.conditional` repeats requests and recognizes their
effects.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PreconditionError,
)
from obstore.store import AzureStore, GCSStore, S3Store

from velaray.journal.errors import JournalError, NotStored
from velaray.journal.objects.object_store import (
    ObjectChanged,
    ObjectCounters,
    ObjectExists,
    StoredObject,
    StoreRefused,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion

REQUESTS_AT_ONCE: Final = 64
"""How many requests of a `RemoteObjects` run at once; the others wait."""
TIMEOUT_S: Final = 30.0
"""The time limit of a request, from its start to the last byte of the answer."""
CONNECT_TIMEOUT_S: Final = 5.0
PAGE: Final = 1000
"""How many names one request lists or deletes at most."""

_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})")
_ANSWER: Final = (
    re.compile(r"non-2xx status code: (\d{3}[^:\n]*)"),
    re.compile(r"<Code>([^<]+)</Code>"),
    re.compile(r"<Message>([^<]+)</Message>"),
)
_ABSENT_CODES: Final = ("NoSuchKey", "BlobNotFound", "ResourceNotFound")
_NO_BUCKET_CODES: Final = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")
_METADATA_SERVICE: Final = "169.254.169.254"
_LONGEST_CAUSE: Final = 400

_FAILURES: Final = (BaseError, FileNotFoundError)


class _Kind(NamedTuple):
    """What differs between the kinds of stores: the class of obstore, the field that identifies a
    version, and how to grant access."""

    store: type[S3Store] | type[GCSStore] | type[AzureStore]
    tag: Literal["e_tag", "version"]
    access: str


_KINDS: Final = {
    "s3": _Kind(
        S3Store,
        "e_tag",
        "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION (and AWS_ENDPOINT_URL for a "
        "server other than Amazon's), and allow s3:GetObject, s3:PutObject, s3:DeleteObject and "
        "s3:ListBucket",
    ),
    "gs": _Kind(
        GCSStore,
        "version",
        "set GOOGLE_SERVICE_ACCOUNT to the path of a key file, and give that account the role "
        "Storage Object User",
    ),
    "az": _Kind(
        AzureStore,
        "e_tag",
        "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or give the identity of "
        "the process the role Storage Blob Data Contributor",
    ),
}


def open_objects(
    url: str, requests_at_once: int = REQUESTS_AT_ONCE, timeout_s: float = TIMEOUT_S
) -> RemoteObjects:
    """The store at ``url``: ``s3://bucket/prefix``, ``gs://bucket/prefix`` or
    ``az://container/prefix``.

    Credentials, region and endpoint come from the environment (AWS_..., GOOGLE_... and AZURE_...),
    or from the provider's service for machines and containers. No request is made. Raises
    `StoreRefused` if the URL or these settings can't be used.
    """
    parts = urlsplit(url)
    kind = _KINDS.get(parts.scheme)
    if kind is None or not parts.netloc or parts.query or parts.fragment:
        forms = "s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"
        raise StoreRefused(url, "not the URL of an object store", f"use {forms}")
    try:
        store = kind.store.from_url(
            url,
            client_options={
                "timeout": timedelta(seconds=timeout_s),
                "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
                "allow_http": _has_plain_endpoint(),
            },
            retry_config={"max_retries": 0},
        )
    except (BaseError, ValueError) as error:
        raise StoreRefused(url, _cause(error), kind.access) from error
    return RemoteObjects(url.rstrip("/"), store, kind, requests_at_once)


def _has_plain_endpoint() -> bool:
    """Whether the environment names an endpoint without TLS, also inside of a key of Google's."""
    return any(
        name.startswith(("AWS_", "GOOGLE_", "AZURE_")) and "http://" in value
        for name, value in os.environ.items()
    )


class RemoteObjects:
    """One process's connections to an object store; implements `ObjectStore`."""

    def __init__(
        self, url: str, store: S3Store | GCSStore | AzureStore, kind: _Kind, requests_at_once: int
    ) -> None:
        self.url = url
        self.counters = ObjectCounters()
        self._store = store
        self._kind = kind
        self._slots = asyncio.Semaphore(requests_at_once)

    def location(self, name: str) -> str:
        """The URL of an object."""
        return f"{self.url}/{name}"

    async def create(self, name: str, data: bytes) -> str:
        """Store a new object; see `ObjectStore`."""
        try:
            return await self._put(name, data, "create")
        except AlreadyExistsError as error:
            # 409 from S3 asks for a repetition; only Azure answers it for a name that is taken.
            if _status(error) != 409 or "BlobAlreadyExists" in str(error):
                raise ObjectExists(self.location(name)) from error
            raise self._failure(name, error) from error
        except PreconditionError as error:
            raise ObjectExists(self.location(name)) from error
        except _FAILURES as error:
            raise self._failure(name, error) from error

    async def replace(self, name: str, data: bytes, tag: str) -> str:
        """Replace a version; see `ObjectStore`."""
        try:
            return await self._put(name, data, self._version(tag))
        except PreconditionError as error:
            if _has_no_bucket(error):
                raise self._failure(name, error) from error
            raise ObjectChanged(self.location(name)) from error
        except _FAILURES as error:
            raise self._failure(name, error) from error

    async def _put(self, name: str, data: bytes, mode: PutMode) -> str:
        self.counters.puts += 1
        self.counters.bytes_written += len(data)
        async with self._slots:
            stored = await self._store.put_async(name, data, mode=mode, use_multipart=False)
        return self._tag(name, stored[self._kind.tag])

    def _version(self, tag: str) -> UpdateVersion:
        return {"version": tag} if self._kind.tag == "version" else {"e_tag": tag}

    async def get(self, name: str) -> StoredObject | None:
        """An object; see `ObjectStore`."""
        self.counters.gets += 1
        try:
            async with self._slots:
                found = await self._store.get_async(name)
                data = bytes(await found.bytes_async())
        except _FAILURES as error:
            if _is_absent(error):
                return None
            raise self._failure(name, error) from error
        self.counters.bytes_read += len(data)
        return StoredObject(data, self._tag(name, found.meta[self._kind.tag]))

    async def get_range(self, name: str, start: int, length: int) -> bytes:
        """Bytes of an object; see `ObjectStore`."""
        self.counters.gets += 1
        try:
            async with self._slots:
                found = await self._store.get_range_async(name, start=start, length=length)
        except _FAILURES as error:
            if _is_absent(error):
                raise NotStored(self.location(name)) from error
            if _status(error) == 416:
                return b""
            raise self._failure(name, error) from error
        self.counters.bytes_read += len(found)
        return bytes(found)

    async def list(self, prefix: str) -> list[str]:
        """The names; see `ObjectStore`. obstore lists folders, so it may read more than that."""
        folder = prefix.rpartition("/")[0]
        names: list[str] = []
        self.counters.lists += 1
        try:
            async with self._slots:
                async for page in self._store.list(folder or None, chunk_size=PAGE):
                    if names:
                        self.counters.lists += 1
                    names += [found["path"] for found in page]
        except _FAILURES as error:
            raise self._failure(prefix, error) from error
        return sorted(name for name in names if name.startswith(prefix))

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects; see `ObjectStore`."""
        for start in range(0, len(names), PAGE):
            batch = list(names[start : start + PAGE])
            self.counters.deletes += 1
            try:
                async with self._slots:
                    await self._store.delete_async(batch)
            except FileNotFoundError as error:
                if _has_no_bucket(error):
                    raise self._failure(batch[0], error) from error
                # Google's and Azure's stores refuse absent names, and may stop there.
                await asyncio.gather(*map(self._delete_one, batch))
            except BaseError as error:
                raise self._failure(batch[0], error) from error

    async def _delete_one(self, name: str) -> None:
        self.counters.deletes += 1
        try:
            async with self._slots:
                await self._store.delete_async(name)
        except _FAILURES as error:
            if not isinstance(error, FileNotFoundError) or _has_no_bucket(error):
                raise self._failure(name, error) from error

    async def close(self) -> None:
        """Do nothing: connections are closed when this object is collected."""

    def _tag(self, name: str, tag: str | None) -> str:
        if tag is None:
            cause = "the store doesn't tell the versions of an object"
            raise StoreRefused(self.location(name), cause, "use another store")
        return tag

    def _failure(self, name: str, error: Exception) -> JournalError:
        """The error of a request that failed for no reason of the object's own."""
        place, cause, status = self.location(name), _cause(error), _status(error)
        if status in (401, 403):
            return StoreRefused(place, f"access denied ({cause})", self._kind.access)
        if _has_no_bucket(error):
            return StoreRefused(place, f"the bucket doesn't exist ({cause})", "create it first")
        if status == 301 or "incorrectly configured region" in cause:
            return StoreRefused(place, f"another region ({cause})", "set AWS_REGION to its region")
        if isinstance(error, NotSupportedError):
            return StoreRefused(place, cause, "use another store")
        if _METADATA_SERVICE in cause:
            cause = f"no credentials in the environment, and none from the machine ({cause})"
        return StoreUnavailable(place, cause)


def _status(error: Exception) -> int | None:
    """The HTTP status of the answer, None if there was none."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found is not None else None


def _has_no_bucket(error: Exception) -> bool:
    return any(code in str(error) for code in _NO_BUCKET_CODES)


def _is_absent(error: Exception) -> bool:
    """Whether the store says that there is no such object. An answer 404 that doesn't say so, such
    as a proxy's, isn't taken for that."""
    return isinstance(error, FileNotFoundError) and any(
        code in str(error) for code in _ABSENT_CODES
    )


def _cause(error: Exception) -> str:
    """The status, code and message of an answer, or the text of an error, without obstore's
    internals."""
    text = str(error)
    answer = [found[1] for found in (p.search(text) for p in _ANSWER) if found is not None]
    if len(answer) > 1:
        return ", ".join(answer)
    text = " ".join(text.partition("Debug source")[0].split())
    return text if len(text) <= _LONGEST_CAUSE else f"{text[:_LONGEST_CAUSE]}..."
