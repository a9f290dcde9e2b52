"""Requests to the proxies of other clusters, for clients of tenants whose home is there.

These are requests for partitions, addresses, topics and schemas. Messages never take this way. The
other proxy gets the request like one of a replicator (`velaray.wire.replication.CLIENT_VERSION`),
so it answers for its own cluster, and requests never go in circles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from velaray.actors.machine import Reason
from velaray.client.auth import AuthenticationToken
from velaray.client.exceptions import TopicNotFound, VelarayError
from velaray.client.lookup import Lookup
from velaray.client.options import ClientOptions
from velaray.client.pool import ConnectionPool
from velaray.client.service_info import parse_service_url
from velaray.client.tls import TlsOptions
from velaray.topology.rpc import RemoteError
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.replication import CLIENT_VERSION

CONNECT_TIMEOUT_MS = 5_000
ANSWER_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class _RemoteProxy:
    """The connections to one cluster's proxy, and the facts of the catalog they are based on."""

    facts: dict[str, Any]
    pool: ConnectionPool
    lookup: Lookup


class RemoteLookup:
    """The connections to other clusters' proxies, opened on first use."""

    def __init__(self, tls: TlsOptions) -> None:
        """``tls`` is how they are connected to by TLS."""
        self._tls = tls
        self._proxies: dict[str, _RemoteProxy] = {}

    def _proxy(self, home: dict[str, Any]) -> _RemoteProxy:
        name = home["cluster"]
        known = self._proxies.get(name)
        if known is not None and known.facts == home:
            return known
        if known is not None:
            known.pool.abort()  # its address or token has changed
        options = ClientOptions(
            home["service_url"],
            authentication=AuthenticationToken(home["token"]) if home["token"] else None,
            operation_timeout_seconds=ANSWER_TIMEOUT_S,
            connection_timeout_ms=CONNECT_TIMEOUT_MS,
            **self._tls.arguments(),
        )
        pool = ConnectionPool(options, CLIENT_VERSION)
        proxy = self._proxies[name] = _RemoteProxy(home, pool, Lookup(options, pool))
        return proxy

    async def ask(self, home: dict[str, Any], command: Any) -> Any:
        """Return the answer of the proxy of cluster ``home`` to a client's ``command``, in the form
        for that client.

        Raises `RemoteError`: UNAVAILABLE if the cluster can't be reached now.
        """
        request = type(command)()
        request.CopyFrom(command)
        try:
            address, answer = await self._proxy(home).lookup.ask(request, ANSWER_TIMEOUT_S)
        except TopicNotFound as error:
            raise RemoteError(Reason.NOT_FOUND, str(error)) from error
        except VelarayError as error:
            problem = f"cluster {home['cluster']} can't be asked now: {error}"
            raise RemoteError(Reason.UNAVAILABLE, problem) from error
        answer.request_id = command.request_id
        if isinstance(answer, pb.CommandLookupTopicResponse) and _tunnelled(answer):
            # A tunnel begins at the other proxy, so the client must ask there again.
            answer.response = pb.CommandLookupTopicResponse.Redirect
            answer.ClearField("brokerServiceUrl")
            answer.ClearField("brokerServiceUrlTls")
            for field, url in _entrances(home, address):
                setattr(answer, field, url)
            answer.authoritative = answer.proxy_through_service_url = False
        return answer

    def close(self) -> None:
        """Cut all connections."""
        for proxy in self._proxies.values():
            proxy.pool.abort()
        self._proxies.clear()


def _entrances(home: dict[str, Any], asked: str) -> Iterator[tuple[str, str]]:
    """The URLs of the proxy that was ``asked``, for clients without TLS and by TLS: fields of the
    answer, and their values. The lists of both kinds name the same proxies in the same order."""
    number = parse_service_url(home["service_url"]).index(asked)
    fields = {"service_url": "brokerServiceUrl", "service_url_tls": "brokerServiceUrlTls"}
    for name, field in fields.items():
        url = home["urls"][name]
        if url:
            addresses = parse_service_url(url)
            scheme = url.partition("://")[0]
            yield field, f"{scheme}://{addresses[min(number, len(addresses) - 1)]}"


def _tunnelled(answer: pb.CommandLookupTopicResponse) -> bool:
    connect = answer.response == pb.CommandLookupTopicResponse.Connect
    return connect and answer.proxy_through_service_url
