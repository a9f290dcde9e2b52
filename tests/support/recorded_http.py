"""A proxy that records the requests and answers of an HTTP server, and a check by its OpenAPI
document."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from jsonschema import Draft202012Validator

_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


class Exchange(NamedTuple):
    """A request and its answer."""

    method: str
    target: str
    body: bytes
    status: int
    content_type: str
    content: bytes


class RecordingProxy(ThreadingHTTPServer):
    """Forwards every request to ``address`` and keeps what passes."""

    daemon_threads = True

    def __init__(self, address: str) -> None:
        self.address = address
        self.exchanges: list[Exchange] = []
        super().__init__(("127.0.0.1", 0), _Forwarding)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Forwarding(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RecordingProxy

    def forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name: text for name, text in self.headers.items() if name.lower() not in _HOP}
        connection = HTTPConnection(self.server.address, timeout=60)
        try:
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        kind = answer.headers.get_content_type() if "Content-Type" in answer.headers else ""
        found = Exchange(self.command, self.path, body, answer.status, kind, content)
        self.server.exchanges.append(found)
        self.send_response(answer.status)
        for name, text in answer.getheaders():
            if name.lower() not in _HOP:
                self.send_header(name, text)
        if answer.status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = forward

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


@contextmanager
def recorded(url: str) -> Iterator[RecordingProxy]:
    """A proxy for the server at ``url``."""
    proxy = RecordingProxy(urlsplit(url).netloc)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()


class Contract:
    """What an OpenAPI document says of requests and answers."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        # A path without variables comes before one with variables that matches it, too.
        self._paths = [
            (re.compile(re.sub(r"\\\{\w+\\\}", "([^/]+)", re.escape(path)) + "$"), path)
            for path in sorted(document["paths"], key=lambda path: path.count("{"))
        ]

    @property
    def operations(self) -> list[str]:
        """The names of all operations: ``METHOD path``."""
        paths = self._document["paths"].items()
        return [f"{method.upper()} {path}" for path, methods in paths for method in methods]

    def operation_of(self, found: Exchange) -> tuple[str, Mapping[str, Any]] | None:
        """The name and the description of the operation that was called."""
        where = urlsplit(found.target).path
        for pattern, path in self._paths:
            operation = self._document["paths"][path].get(found.method.lower())
            if operation is not None and pattern.match(where):
                return f"{found.method} {path}", operation
        return None

    def faults(self, found: Exchange) -> list[str]:
        """What the document doesn't describe of a request and its answer."""
        described = self.operation_of(found)
        if described is None:
            return [] if found.status == 501 else [f"no such operation, status {found.status}"]
        _, operation = described
        faults = [*self._in_answer(operation, found)]
        if found.status < 400:
            faults += [*self._in_query(operation, found), *self._in_body(operation, found)]
        return faults

    def _in_query(self, operation: Mapping[str, Any], found: Exchange) -> Iterator[str]:
        known = {each["name"]: each for each in operation["parameters"] if each["in"] == "query"}
        for name, text in parse_qsl(urlsplit(found.target).query):
            if name in known:
                schema = known[name]["schema"]
                value = text if schema.get("type") == "string" else _value(text)
                yield from (f"query {name}: {each}" for each in self._wrong(schema, value))

    def _in_body(self, operation: Mapping[str, Any], found: Exchange) -> Iterator[str]:
        described = operation.get("requestBody")
        if not found.body.strip():
            if described and described["required"]:
                yield "the body is missing"
        elif described is None:
            yield f"an undescribed body {found.body[:100]!r}"
        else:
            schema = described["content"]["application/json"]["schema"]
            yield from (f"body {each}" for each in self._wrong(schema, _value(found.body)))

    def _in_answer(self, operation: Mapping[str, Any], found: Exchange) -> Iterator[str]:
        responses = operation["responses"]
        answer = responses.get(str(found.status))
        if answer is None:
            if found.status < 400:
                yield f"status {found.status} isn't described"
            answer = self._document["components"]["responses"]["Problem"]
        content = answer.get("content", {})
        if not content:
            if found.content:
                yield f"an answer with content {found.content[:100]!r}"
        elif found.content_type not in content:
            yield f"an answer of type {found.content_type!r}"
        elif found.content_type == "application/json":
            schema = content[found.content_type]["schema"]
            yield from (f"answer {each}" for each in self._wrong(schema, _value(found.content)))

    def _wrong(self, schema: Mapping[str, Any], value: Any) -> Iterator[str]:
        whole = {**schema, "components": self._document["components"]}
        for error in Draft202012Validator(whole).iter_errors(value):
            yield f"{error.json_path}: {error.message[:200]}"


def _value(text: str | bytes) -> Any:
    """The JSON value, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return unquote(text if isinstance(text, str) else text.decode())
