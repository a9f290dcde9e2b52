"""Requests to the REST interface of a cluster."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

from velaray.client.admin.errors import AdminError, Unauthorized, Unavailable, error_of
from velaray.client.admin.operations import JSON, Operation, Query
from velaray.client.admin.transports import Answer, Sending, Transport
from velaray.client.exceptions import ConnectError, VelarayError

DEFAULT_URL = "http://127.0.0.1:8080"
MAX_REDIRECTS = 3
"""How often a request follows redirects to the home cluster of a tenant."""
_ELSEWHERE = 307

ModeT = TypeVar("ModeT")
FetchToken = Callable[[], Awaitable[bytes]]
"""Returns the token of the next request, which may be another one each time."""


class AdminConnection:
    """Sends requests to a cluster's REST interface."""

    def __init__(
        self,
        url: str,
        transport: Transport,
        token: str | None,
        client_version: str | None,
        fetch_token: FetchToken | None = None,
    ) -> None:
        """``client_version`` is sent as the user agent; ``fetch_token`` returns tokens instead of
        ``token``. Raises `ValueError` if ``url`` isn't http(s)."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an admin URL: {url!r}; write http://host:port")
        self.url = url
        self._transport = transport
        self._fetch_token = fetch_token
        self._headers = {"Accept": "*/*", "Content-Type": JSON}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        if client_version:
            self._headers["User-Agent"] = client_version

    async def send(
        self, method: str, path: str, body: Any = None, query: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request and return its answer. Raises `AdminError`."""
        target = self.url.rstrip("/") + path
        if query:
            target += f"?{urlencode(query)}"
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, **await self._fetched()}
        for _ in range(1 + MAX_REDIRECTS):
            answer = await self._transport.send(Sending(method, target, headers, data))
            if answer.status >= 400:
                raise error_of(answer.status, answer.content)
            if answer.status != _ELSEWHERE:
                return answer
            target = urljoin(target, answer.headers["location"])
        raise AdminError(answer.status, f"{self.url}: more than {MAX_REDIRECTS} redirects")

    async def _fetched(self) -> dict[str, str]:
        """The header with a fetched token. Raises `Unauthorized` and `Unavailable`."""
        if self._fetch_token is None:
            return {}
        try:
            token = await self._fetch_token()
        except ConnectError as error:
            raise Unavailable(0, str(error)) from error
        except VelarayError as error:
            raise Unauthorized(0, str(error)) from error
        return {"Authorization": f"Bearer {token.decode()}"}


def parsed(answer: Answer) -> Any:
    """The content of an answer; None if it is empty."""
    if not answer.content:
        return None
    kind = answer.headers.get("content-type", "").partition(";")[0].strip()
    return json.loads(answer.content) if kind == JSON else answer.content.decode()


class Resource(Generic[ModeT]):
    """Base of the classes of the resources."""

    def __init__(self, connection: AdminConnection, mode: type[ModeT]) -> None:
        self._connection = connection
        self.mode = mode

    async def _ask(
        self,
        operation: Operation,
        variables: Mapping[str, Any] | None = None,
        query: Query | None = None,
        body: Any = None,
    ) -> Any:
        """Call an operation; return the parsed answer. Parameters with their defaults are left
        out."""
        return parsed(await self._exchange(operation, variables, query, body))

    async def _exchange(
        self,
        operation: Operation,
        variables: Mapping[str, Any] | None = None,
        query: Query | None = None,
        body: Any = None,
    ) -> Answer:
        """Call an operation as `_ask` does; return the answer."""
        texts = {each.name: each.text(value) for each, value in (query or {}).items()}
        given = {name: text for name, text in texts.items() if text is not None}
        path = operation.target(variables or {})
        return await self._connection.send(operation.method, path, body, given)
