"""Requests to the REST interface of a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit, urlunsplit

from velaray.client.admin.errors import AdminError, Unavailable, error_of

DEFAULT_URL = "http://127.0.0.1:8080"
MAX_REDIRECTS = 3
"""How often a request follows redirects to the home cluster of a tenant."""
_ELSEWHERE = 307


class AdminConnection:
    """Sends requests to a cluster's REST interface, each over a connection of its own."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout_s: float = 90.0,
        client_version: str | None = None,
    ) -> None:
        """``timeout_s`` limits every request; ``client_version`` is sent as the user agent.
        Raises `ValueError` if ``url`` isn't http(s)."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an admin URL: {url!r}; write http://host:port")
        self.url = url
        self._token = token
        self._client_version = client_version
        self._timeout_s = timeout_s

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        version: int = 2,
    ) -> Any:
        """Send one request below ``/admin/v2``, or below another ``version``; return the parsed
        answer, None if it is empty."""
        response, content = self.exchange(method, path, body, query, version)
        if not content:
            return None
        if response.headers.get_content_type() != "application/json":
            return content.decode()
        return json.loads(content)

    def exchange(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        version: int = 2,
    ) -> tuple[HTTPResponse, bytes]:
        """Send one request as `request` does; return the answer and its content."""
        target = f"{self.url.rstrip('/')}/admin/v{version}/{path}"
        if query:
            target += f"?{urlencode(query)}"
        for _ in range(1 + MAX_REDIRECTS):
            response, content = self._send(method, target, body)
            if response.status >= 400:
                raise error_of(response.status, content)
            if response.status != _ELSEWHERE:
                return response, content
            target = urljoin(target, response.headers["Location"])
        raise AdminError(response.status, f"{self.url}: more than {MAX_REDIRECTS} redirects")

    def _send(self, method: str, target: str, body: Any) -> tuple[HTTPResponse, bytes]:
        headers = {"Accept": "*/*", "Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if self._client_version:
            headers["User-Agent"] = self._client_version
        url = urlsplit(target)
        kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
        connection = kind(str(url.hostname), url.port, timeout=self._timeout_s)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, urlunsplit(("", "", *url[2:])), data, headers)
            response = connection.getresponse()
            return response, response.read()
        except (OSError, HTTPException) as error:
            raise Unavailable(
                0,
                f"no answer from {url.scheme}://{url.netloc} ({error or type(error).__name__}): is "
                "velaray running there? Start it with `velaray start`",
            ) from error
        finally:
            connection.close()


class Resource:
    """Base of the classes of the resources."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection
