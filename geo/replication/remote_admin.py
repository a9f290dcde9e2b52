"""Client for the admin interface of another cluster, velaray's or Pulsar's."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import aiohttp

from velaray.client.tls import http_arguments
from velaray.events.ids import TopicName
from velaray.geo.replication.replicator_settings import CannotReplicate, Remote

TIMEOUT_S = 10.0
MAX_REDIRECTS = 5
_REDIRECTS = (301, 302, 307, 308)
_NOT_FOUND = 404


def path_of(topic: TopicName) -> str:
    """The admin path of a topic or partition."""
    suffix = f"-partition-{topic.partition}" if topic.partition >= 0 else ""
    return f"persistent/{topic.namespace_name}/{quote(topic.local, safe='')}{suffix}"


class NotThere(CannotReplicate):
    """The other cluster answers that the resource doesn't exist."""


class Refused(CannotReplicate):
    """The other cluster answers with an error; ``status`` is the HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class RemoteAdmin:
    """Sends one request at a time, each over its own connection."""

    def __init__(self, remote: Remote) -> None:
        self.cluster = remote.name
        self._url = remote.admin_url.rstrip("/")
        self._tls = remote.tls
        self._headers = {"Content-Type": "application/json"}
        if remote.token:
            self._headers["Authorization"] = f"Bearer {remote.token}"

    async def get(self, path: str) -> Any:
        """The parsed answer; None if it is empty. ``path`` is relative to ``/admin/v2/``.

        Raises `NotThere`, `CannotReplicate`.
        """
        return await self.request("GET", path)

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        """Like `get`, with any method. Sends ``body`` as JSON unless it is None."""
        url = f"{self._url}/admin/v2/{path}"
        data = None if body is None else json.dumps(body)
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                status, text = await self._follow(session, method, url, data)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            problem = str(error) or "no answer in time"
            raise CannotReplicate(
                f"the admin interface of {self.cluster} at {url}: {problem}"
            ) from error
        if status == _NOT_FOUND:
            raise NotThere(f"{self.cluster} answers to {method} {url}: {text[:200].strip()}")
        if status >= 300:
            problem = f"{self.cluster} answers to {method} {url} with {status} {text[:200].strip()}"
            raise Refused(status, problem)
        try:
            return json.loads(text) if text.strip() else None
        except ValueError as error:
            raise CannotReplicate(
                f"{self.cluster} doesn't answer {method} {url} with JSON"
            ) from error

    async def _follow(
        self, session: aiohttp.ClientSession, method: str, url: str, data: str | None
    ) -> tuple[int, str]:
        """Follow a redirect to the broker that owns the topic, with the token. The HTTP client
        doesn't send the token to another host by itself."""
        for _ in range(MAX_REDIRECTS):
            async with session.request(
                method,
                url,
                data=data,
                headers=self._headers,
                allow_redirects=False,
                **http_arguments(self._tls, url),
            ) as answer:
                where = answer.headers.get("Location")
                if answer.status not in _REDIRECTS or where is None:
                    return answer.status, await answer.text()
                url = where
        raise aiohttp.ClientError(f"more than {MAX_REDIRECTS} redirects")
