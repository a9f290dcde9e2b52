"""A small object store in this process, as S3, Google and Azure answer; its answers can be made
wrong, one after the other."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree

BUCKET = "bucket"


class Break(Enum):
    """How an answer gets lost."""

    DROP = auto()
    """The connection is closed."""
    HANG = auto()
    """No answer comes."""
    CUT = auto()
    """The answer ends in the middle of its body."""


@dataclass(frozen=True)
class Fault:
    """What happens to a request: an answer (status and body), or none; the effect comes first if
    ``applied``."""

    answer: tuple[int, bytes] | Break
    applied: bool = False


def error_answer(status: int, code: str) -> Fault:
    """An error of S3, without an effect."""
    return Fault((status, _error(code)))


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>as scripted</Message></Error>".encode()


class StubStore:
    """The objects, the faults of the next requests, and what was requested so far."""

    page = 3
    """How many names a listing has at most."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.faults: deque[Fault] = deque()
        self.requests: list[str] = []
        self.keys: list[str] = []
        """The access keys with which requests were signed."""
        self.deleted: list[int] = []
        self.running = 0
        self.most_running = 0
        self.open = threading.Event()
        """Requests wait for it."""
        self.open.set()
        self.closing = threading.Event()
        self.lock = threading.RLock()
        self._tags = count(1)

    def put(self, name: str, data: bytes, headers: Any) -> tuple[int, bytes, str]:
        """Store an object as its conditions allow."""
        found = self.objects.get(name)
        if "x-ms-blob-type" in headers and "If-None-Match" in headers and found is not None:
            return 409, _error("BlobAlreadyExists"), ""
        generation = headers.get("x-goog-if-generation-match")
        former = f'"{generation}"' if generation else headers.get("If-Match")
        if ("If-None-Match" in headers or generation == "0") and found is not None:
            return 412, _error("PreconditionFailed"), ""
        if former is not None and generation != "0":
            if found is None:
                return 404, _error("NoSuchKey"), ""
            if found[1] != former:
                return 412, _error("PreconditionFailed"), ""
        tag = f'"{next(self._tags)}"'
        self.objects[name] = data, tag
        return 200, b"", tag

    def get(self, name: str, span: str | None) -> tuple[int, bytes, str, str]:
        """An object, or a part of it; with its tag and the range of the answer."""
        if name not in self.objects:
            return 404, _error("NoSuchKey"), "", ""
        data, tag = self.objects[name]
        if span is None:
            return 200, data, tag, ""
        first, last = map(int, span.removeprefix("bytes=").split("-"))
        if first >= len(data):
            return 416, _error("InvalidRange"), "", ""
        part = data[first : last + 1]
        return 206, part, tag, f"bytes {first}-{first + len(part) - 1}/{len(data)}"

    def list(self, prefix: str, after: str) -> bytes:
        """A page of the names, as XML."""
        left = sorted(name for name in self.objects if name.startswith(prefix) and name > after)
        page = left[: self.page]
        rows = "".join(
            f"<Contents><Key>{name}</Key><Size>{len(self.objects[name][0])}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for name in page
        )
        more = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if left != page else ""
        return f"<ListBucketResult>{more}{rows}</ListBucketResult>".encode()

    def delete(self, body: bytes) -> bytes:
        """Delete the objects that a request names."""
        names = [
            node.text or "" for node in ElementTree.fromstring(body).iter() if "Key" in node.tag
        ]
        self.deleted.append(len(names))
        for name in names:
            self.objects.pop(name, None)
        rows = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
        return f"<DeleteResult>{rows}</DeleteResult>".encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: StubStore

    def do_PUT(self) -> None:
        self._handle()

    do_GET = do_POST = do_DELETE = do_PUT

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        store = self.store
        with store.lock:
            store.requests.append(self.command)
            signature = self.headers.get("Authorization", "")
            store.keys.append(signature.partition("Credential=")[2].partition("/")[0])
            store.running += 1
            store.most_running = max(store.most_running, store.running)
            fault = store.faults.popleft() if store.faults else None
        store.open.wait(60)
        with store.lock:
            store.running -= 1
            answer = self._effect(body) if fault is None or fault.applied else (200, b"", "", "")
        if fault is None:
            self._answer(*answer)
        elif not isinstance(fault.answer, Break):
            self._answer(*fault.answer)
        elif fault.answer is Break.CUT:
            self._answer(*answer, missing=1)
        else:
            if fault.answer is Break.HANG:
                store.closing.wait(60)
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def _effect(self, body: bytes) -> tuple[int, bytes, str, str]:
        parts = urlsplit(self.path)
        name = unquote(parts.path).removeprefix(f"/{BUCKET}").removeprefix("/")
        query = parse_qs(parts.query, keep_blank_values=True)
        if self.command == "PUT":
            return (*self.store.put(name, body, self.headers), "")
        if self.command == "POST":
            return 200, self.store.delete(body), "", ""
        if "list-type" in query:
            (prefix,), (after,) = query.get("prefix", [""]), query.get("continuation-token", [""])
            return 200, self.store.list(prefix, after), "", ""
        return self.store.get(name, self.headers.get("Range"))

    def _answer(
        self, status: int, body: bytes, tag: str = "", span: str = "", missing: int = 0
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        if tag:
            self.send_header("ETag", tag)
            self.send_header("x-goog-generation", tag.strip('"'))
        if span:
            self.send_header("Content-Range", span)
        self.end_headers()
        self.wfile.write(body[: len(body) - missing])
        if missing:
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def stub_store() -> Iterator[tuple[StubStore, str]]:
    """A running server and its address."""
    store = StubStore()
    handler = type("Handler", (_Handler,), {"store": store})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield store, f"http://127.0.0.1:{server.server_port}"
        finally:
            store.open.set()
            store.closing.set()
            server.shutdown()
            thread.join()
