"""Lookups: the server of a topic, its number of partitions, and the existing topics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from velaray.client.connection import Connection
from velaray.client.enums import RegexSubscriptionMode
from velaray.client.exceptions import (
    ConnectError,
    LookupError,
    Timeout,
    VelarayError,
    from_server,
)
from velaray.client.options import ClientOptions
from velaray.client.patience import Patience, Wait
from velaray.client.pool import ConnectionPool
from velaray.client.retry import TRANSIENT
from velaray.client.service_info import parse_service_url
from velaray.events.backoff import Backoff
from velaray.events.ids import TopicName
from velaray.wire import pulsar_pb2 as pb

logger = logging.getLogger("velaray")

MAX_REDIRECTS = 20

ATTEMPTS_PER_OPERATION = 3
"""Number of attempts whose response times fit into one operation timeout.

A response can be lost because its server died silently. The limit of an attempt leaves time for
another one.
"""

T = TypeVar("T")


async def retrying(
    what: str, seconds: float, attempt: Callable[[], Awaitable[T]], patience: Patience
) -> T:
    """Run ``attempt`` and repeat it with back-off while it fails with `TRANSIENT` errors.

    Raises its first other error, or `Timeout` after ``seconds``; the text contains the last error.
    """
    backoff = Backoff()
    wait = Wait(what, seconds, patience)
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    return await attempt()
                except TRANSIENT as error:
                    logger.debug("%s failed, trying again: %s", what, error)
                    wait.error = error
                await backoff.wait()
    except TimeoutError as error:
        if isinstance(error, VelarayError):
            raise
        last = wait.error
        reason = f"; last error: {type(last).__name__}: {last}" if last else ""
        raise Timeout(f"{what} didn't finish in {seconds:g} s{reason}") from (last or error)
    finally:
        wait.end()


class Lookup:
    """Sends lookups to the service's URL; any of its servers can answer them.

    Each method makes one attempt; callers repeat with `retrying`.
    """

    def __init__(self, options: ClientOptions, pool: ConnectionPool) -> None:
        self._addresses = parse_service_url(options.service_url)
        self._uses_tls = options.security() is not None
        self._turn = 0
        self._options = options
        self._pool = pool
        self._timeout = options.operation_timeout_seconds / ATTEMPTS_PER_OPERATION

    async def _service(self) -> Connection:
        # After a failure the next attempt uses the next address. All callers that waited for the
        # connection fail at once: only the first of them moves on.
        turn = self._turn
        try:
            return await self._pool.get(self._addresses[turn % len(self._addresses)])
        except ConnectError:
            if self._turn == turn:
                self._turn += 1
            raise

    async def ask(self, request: Any, timeout: float) -> tuple[str, Any]:
        """Return the response to ``request``, and the address of the server that sent it.

        The response must come within ``timeout`` seconds. Raises the errors of connecting and of
        `Connection.request`.
        """
        connection = await self._service()
        return connection.address, await connection.request(request, timeout)

    async def server_of(self, topic: str) -> Connection:
        """Return a connection to the server of ``topic`` (a plain topic or one partition)."""
        connection = await self._service()
        authoritative = False
        for _ in range(MAX_REDIRECTS):
            asked = connection.address  # a proxied connection goes through the server that answered
            request = pb.CommandLookupTopic(topic=topic, authoritative=authoritative)
            if self._options.listener_name is not None:
                request.advertised_listener_name = self._options.listener_name
            answer = await connection.request(request, self._timeout)
            if answer.response == pb.CommandLookupTopicResponse.Failed:
                raise from_server(answer.error, answer.message)
            url = answer.brokerServiceUrlTls if self._uses_tls else answer.brokerServiceUrl
            if not url:
                kind = "by TLS" if self._uses_tls else "without TLS"
                raise LookupError(f"{topic}: its server can't be reached {kind}")
            (target,) = parse_service_url(url)
            tunnel = answer.proxy_through_service_url
            if answer.response == pb.CommandLookupTopicResponse.Connect:
                if tunnel:
                    return await self._pool.get(asked, target)
                return await self._pool.get(target)
            authoritative = answer.authoritative
            connection = await (self._pool.get(asked, target) if tunnel else self._pool.get(target))
        raise LookupError(f"{topic}: more than {MAX_REDIRECTS} redirects")

    async def partitions_of(self, topic: str, create: bool = True) -> int:
        """Return the number of partitions of ``topic``; 0 for a plain topic or one partition.

        A missing topic is created if the service's policy allows it and ``create`` is true.
        Otherwise a missing topic raises `TopicNotFound`.
        """
        if create and TopicName.parse(topic).partition >= 0:
            return 0
        connection = await self._service()
        request = pb.CommandPartitionedTopicMetadata(
            topic=topic, metadata_auto_creation_enabled=create
        )
        answer = await connection.request(request, self._timeout)
        if answer.response == pb.CommandPartitionedTopicMetadataResponse.Failed:
            raise from_server(answer.error, answer.message)
        return int(answer.partitions)

    async def topics_of(self, namespace: str, mode: RegexSubscriptionMode) -> list[str]:
        """Return the topics of a namespace, without partition suffixes, sorted."""
        connection = await self._service()
        answer = await connection.request(
            pb.CommandGetTopicsOfNamespace(namespace=namespace, mode=int(mode)),  # type: ignore[arg-type]
            self._timeout,
        )
        return sorted({str(TopicName.parse(name).topic) for name in answer.topics})
