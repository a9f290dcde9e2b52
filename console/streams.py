"""Updates of pages: server-sent events with the part of a page that is live.

A page is followed by a request for the same path that accepts ``text/event-stream``. Each event is
rendered by the page itself, after its own checks: a token that is revoked ends the updates.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiohttp import web

KIND = "text/event-stream"
MOST = 64
"""The most pages that a process updates at a time; others are refused, and ask again."""
EVERY_S = 2.0
"""The time between two looks at a page: surveys of running actors are no newer."""
SHARE = 10
"""The time between two looks, in times of a look: a page takes a tenth of the time at most."""
MOST_S = 30.0
"""The longest time between two looks."""
WRITE_S = 30.0
"""A browser that doesn't read for so long is left."""
PROBLEM = web.ResponseKey("problem", str)
"""The key under which an answer has the text of its problem."""
_BEGIN, _END = "<!-- live -->", "<!-- end of live -->"

Look = Callable[[], Awaitable[web.Response]]


class Streams:
    """The streams of a process."""

    def __init__(self) -> None:
        self.open = 0
        self._ended = asyncio.Event()

    async def wait(self, seconds: float) -> bool:
        """Wait; whether the server goes on."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        return not self._ended.is_set()

    async def end(self, _app: web.Application) -> None:
        """End all streams: the server stops, and would wait for them."""
        self._ended.set()


STREAMS = web.AppKey("streams", Streams)


def is_stream(request: web.Request) -> bool:
    """Whether a request asks for the updates of a page."""
    return request.method == "GET" and KIND in request.headers.get("Accept", "")


def live_part(text: str) -> str | None:
    """The part of a page that is live; None if it has none."""
    _, found, rest = text.partition(_BEGIN)
    return rest.partition(_END)[0].strip() if found else None


async def follow(request: web.Request, look: Look, headers: dict[str, str]) -> web.StreamResponse:
    """Send the live part of a page whenever it changes, until the browser or this server leaves.

    Answers 204 for a page without such a part, which ends the browser's requests, 503 if `MOST`
    pages are updated, and as the page itself if the visitor may not see it.
    """
    streams = request.app[STREAMS]
    answer = await look()
    if answer.status in (401, 403):
        return answer
    if answer.status == 200 and live_part(answer.text or "") is None:
        return web.Response(status=204, headers=headers)
    if streams.open >= MOST:
        told = f"{MOST} pages are updated already"
        return web.Response(status=503, text=told, headers={**headers, "Retry-After": "5"})
    streams.open += 1
    try:
        return await _followed(request, look, headers, answer)
    finally:
        streams.open -= 1


async def _followed(
    request: web.Request, look: Look, headers: dict[str, str], answer: web.Response
) -> web.StreamResponse:
    response = web.StreamResponse(headers={**headers, "Content-Type": KIND})
    sent, going, took = "", True, 0.0
    with suppress(ConnectionError):  # the browser has left
        await response.prepare(request)
        while going:
            told = event_of(answer)
            await _write(request, response, told if told != sent else _event("same", ""))
            sent, going = told, answer.status != 303
            going = going and await request.app[STREAMS].wait(pause_s(took))
            if going:
                began = time.monotonic()
                answer = await look()
                took = time.monotonic() - began
    return response


def pause_s(took_s: float) -> float:
    """The time until the next look, after one that took so long."""
    return min(max(EVERY_S, SHARE * took_s), MOST_S)


async def _write(request: web.Request, response: web.StreamResponse, text: str) -> None:
    """Write to the browser. Raises `ConnectionError` if it has left, or doesn't read."""
    try:
        async with asyncio.timeout(WRITE_S):
            await response.write(text.encode())
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionAbortedError("the browser doesn't read") from None


def event_of(answer: web.Response) -> str:
    """The event that an answer is for a page that is shown."""
    if answer.status == 303:
        return _event("leave", answer.headers["Location"])
    if answer.status != 200:
        return _event("problem", answer.get(PROBLEM, str(answer.status)))
    return _event("part", live_part(answer.text or "") or "")


def _event(name: str, text: str) -> str:
    lines = "".join(f"data: {line}\n" for line in text.splitlines() or [""])
    return f"event: {name}\n{lines}\n"
