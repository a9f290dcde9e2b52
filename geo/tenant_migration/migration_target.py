"""The target cluster of a migration, as the source uses it."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote

import aiohttp

from velaray.actors.machine import Reason
from velaray.client.tls import TlsOptions, http_arguments
from velaray.topology.actor_system import Unreachable
from velaray.topology.rpc import RemoteError
from velaray.wire.replication import CLIENT_VERSION

TIMEOUT_S = 30.0
MAX_BYTES = 256 << 10
"""The most bytes of subscription progress in one request."""
MAX_ROWS = 2000
"""The most producers in one request."""
MAX_TOPICS = 500
_REASONS = {
    401: Reason.NOT_ALLOWED,
    404: Reason.NOT_FOUND,
    409: Reason.CONFLICT,
    412: Reason.NOT_ALLOWED,
    422: Reason.INVALID,
}


class Target(Protocol):
    """The requests of a migration to its target. Each may be repeated, and is durable there when
    it returns.

    Raises `RemoteError` if the other cluster refuses, `Unreachable` if it doesn't answer.
    """

    async def look(self) -> dict[str, Any]:
        """Describe the target and its part of the tenant: ``cluster``, ``number``, ``clusters``
        that it knows, ``tenant`` (whether it exists), ``home``, ``namespaces`` (whether each has
        policies of its own), ``topics``, ``arrival`` (the newest one)."""
        ...

    async def expect(self) -> None:
        """Prepare the target for the tenant, whose home is still this cluster."""
        ...

    async def newest(self, topics: Sequence[str]) -> dict[str, list[int]]:
        """The position of the newest entry from here in each of these partitions that has one."""
        ...

    async def settle(self, topics: Sequence[str]) -> dict[str, str]:
        """Decide all transactions that arrived; return the obstacles, by partition."""
        ...

    async def take_progress(self, topic: str, parts: Sequence[bytes]) -> None:
        """Apply the subscription progress of a partition."""
        ...

    async def adopt_producers(self, topic: str, rows: Sequence[Any]) -> None:
        """Take over the producer state of a partition."""
        ...

    async def terminate(self, topic: str) -> None:
        """Terminate a partition."""
        ...

    async def end(self, *, stays: bool, found: Sequence[str] = ()) -> None:
        """End the migration: the target becomes the tenant's home, or (not ``stays``) deletes what
        it has of the tenant, except for what was ``found`` there before."""
        ...


class RestTarget:
    """A `Target` over the admin interface of the other cluster."""

    def __init__(
        self,
        cluster: str,
        facts: Mapping[str, Any],
        source: str,
        tenant: str,
        number: int = 0,
        *,
        tls: TlsOptions = TlsOptions(),  # noqa: B008  # it is immutable
    ) -> None:
        """``facts`` describe the cluster, from the catalog; ``number`` is the migration's, and
        ``tls`` how to connect to an admin URL of TLS."""
        self._cluster = cluster
        self._url = facts["admin_url"].rstrip("/")
        self._token = facts.get("token")
        self._tls = tls
        self._tenant = tenant
        self._who = {"source": source, "migration": number}

    async def look(self) -> dict[str, Any]:
        """See `Target`."""
        found = await self._ask("GET", "")
        if not isinstance(found, dict) or "topics" not in found:
            raise self._nonsense()
        return found

    async def expect(self) -> None:
        """See `Target`."""
        await self._step("expect")

    async def newest(self, topics: Sequence[str]) -> dict[str, list[int]]:
        """See `Target`."""
        return await self._of_topics("newest", topics)

    async def settle(self, topics: Sequence[str]) -> dict[str, str]:
        """See `Target`."""
        return await self._of_topics("settle", topics)

    async def _of_topics(self, step: str, topics: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for first in range(0, len(topics), MAX_TOPICS):
            answer = await self._step(step, topics=list(topics[first : first + MAX_TOPICS]))
            if not isinstance(answer, dict):
                raise self._nonsense()
            found |= answer
        return found

    async def take_progress(self, topic: str, parts: Sequence[bytes]) -> None:
        """See `Target`."""
        for some in _bounded(parts):
            encoded = [base64.b64encode(part).decode() for part in some]
            await self._step("progress", topic=topic, parts=encoded)

    async def adopt_producers(self, topic: str, rows: Sequence[Any]) -> None:
        """See `Target`."""
        for first in range(0, len(rows), MAX_ROWS):
            await self._step("producers", topic=topic, rows=rows[first : first + MAX_ROWS])

    async def terminate(self, topic: str) -> None:
        """See `Target`."""
        await self._step("terminate", topic=topic)

    async def end(self, *, stays: bool, found: Sequence[str] = ()) -> None:
        """See `Target`."""
        await self._step("end", stays=stays, found=list(found))

    async def _step(self, step: str, **args: Any) -> Any:
        return await self._ask("POST", f"/{step}", {**self._who, **args})

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        url = f"{self._url}/admin/v2/velaray/arrivals/{quote(self._tenant, safe='')}{path}"
        headers = {"User-Agent": CLIENT_VERSION}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(
                    method, url, json=body, headers=headers, **http_arguments(self._tls, url)
                ) as answer,
            ):
                if answer.status == 204:
                    return None
                found = await answer.json()
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            problem = str(error) or "no answer in time"
            raise Unreachable(
                f"cluster {self._cluster} doesn't answer at {url}: {problem}"
            ) from error
        if status >= 300:
            reason = found.get("reason", "") if isinstance(found, dict) else ""
            kind = _REASONS.get(status, Reason.UNAVAILABLE)
            raise RemoteError(kind, f"cluster {self._cluster} refused: {reason or status}")
        return found

    def _nonsense(self) -> RemoteError:
        problem = f"cluster {self._cluster} gave an answer that this version doesn't understand"
        return RemoteError(Reason.UNAVAILABLE, problem)


def _bounded(parts: Sequence[bytes]) -> Iterator[list[bytes]]:
    """All parts in order, grouped into requests."""
    some: list[bytes] = []
    size = 0
    for part in parts:
        if some and size + len(part) > MAX_BYTES:
            yield some
            some, size = [], 0
        some.append(part)
        size += len(part)
    if some:
        yield some
