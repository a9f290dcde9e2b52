"""The lists of topics that a proxy gives to clients: shared by requests, and bounded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import cached_property

from velaray.actors.machine import Reason
from velaray.topology.rpc import RemoteError
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import shared_answer
from velaray.wire.hashing import topics_hash

Ask = Callable[[str, bool], Awaitable[list[str]]]
"""Asks the catalog for the names of a namespace, and whether only at the tenant's home."""

MOST_REST_S = 1.0
"""The longest rest between two queries of a namespace."""

_Key = tuple[str, bool]
_MOST_NARROWED = 16
_SCHEME = re.compile(r"\^?(?:persistent|non-persistent)://")
_PLAIN = re.compile(r"[\w/~@%=,:-]*")
"""Characters that stand for themselves in patterns."""


class Listed:
    """A list of topics, encoded once for all requests that share it."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.digest = topics_hash(names)
        self._narrowed: dict[str, Listed] = {}

    @cached_property
    def _encoded(self) -> bytes:
        shared = pb.CommandGetTopicsOfNamespaceResponse(
            topics=self.names, topics_hash=self.digest, changed=True
        )
        return shared.SerializePartialToString()

    def answer(self, request: pb.CommandGetTopicsOfNamespace, most: int) -> list[bytes]:
        """The frame of the answer to a request, in parts.

        A request with the hash of this list is answered without names. Raises `RemoteError`
        (NOT_ALLOWED) if the answer exceeds ``most`` bytes.
        """
        head = pb.CommandGetTopicsOfNamespaceResponse(request_id=request.request_id)
        if request.topics_hash and request.topics_hash == self.digest:
            head.topics_hash, head.changed = self.digest, False
            return shared_answer(head, b"")
        if len(self._encoded) > most:
            problem = (
                f"the list of the {len(self.names):,} topics of {request.namespace} takes "
                f"{len(self._encoded):,} bytes; it may take {most:,}: subscribe by a pattern that "
                "begins with more of the names, or use more namespaces"
            )
            raise RemoteError(Reason.NOT_ALLOWED, problem)
        return shared_answer(head, self._encoded)

    def narrowed(self, pattern: str) -> Listed:
        """The topics that begin as a client's pattern does. The client applies the pattern."""
        prefix = plain_beginning(pattern)
        if not prefix:
            return self
        found = self._narrowed.get(prefix)
        if found is None:
            names = self.names
            found = Listed([each for each in names if each.partition("://")[2].startswith(prefix)])
            if len(self._narrowed) < _MOST_NARROWED:
                self._narrowed[prefix] = found
        return found


def plain_beginning(pattern: str) -> str:
    """The literal text, without the scheme, with which each name begins that a pattern matches; ""
    if the pattern doesn't begin with such a text.

    Patterns of clients are never evaluated, since that can take any time.
    """
    if "|" in pattern:
        return ""
    rest = pattern[found.end() :] if (found := _SCHEME.match(pattern)) else pattern.lstrip("^")
    plain = _PLAIN.match(rest)
    assert plain is not None
    end = plain.end()
    if rest[end : end + 1] in ("*", "?", "{"):
        end -= 1  # the last character may be missing
    return rest[: max(end, 0)]


class TopicLists:
    """Asks the catalog for lists: one query of a namespace at a time.

    Requests that wait share the next query, which begins after they came, so a list has all topics
    that existed when it was asked for. After a query of a namespace the catalog has as much time
    for others, at most `MOST_REST_S`.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._waiting: dict[_Key, asyncio.Task[Listed]] = {}
        self._busy: dict[_Key, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[Listed]] = set()

    async def of(self, namespace: str, at_home: bool) -> Listed:
        """The topics of a namespace. Raises what the query raises."""
        key = namespace, at_home
        task = self._waiting.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._make(key))
            self._waiting[key] = task
            self._tasks.add(task)
            task.add_done_callback(self._retrieve)
        return await asyncio.shield(task)

    async def _make(self, key: _Key) -> Listed:
        try:
            while (busy := self._busy.get(key)) is not None:
                await busy.wait()
        finally:
            del self._waiting[key]
        self._busy[key] = asyncio.Event()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            return Listed(await self._ask(*key))
        finally:
            loop.call_later(min(loop.time() - begun, MOST_REST_S), self._free, key)

    def _free(self, key: _Key) -> None:
        self._busy.pop(key).set()

    def close(self) -> None:
        """End the requests that wait."""
        for task in [*self._tasks]:
            task.cancel()

    def _retrieve(self, task: asyncio.Task[Listed]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # each request that waits gets it too
