"""Credentials of a provider's service are renewed while a process runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.journal.stub_store import BUCKET, StubStore, stub_store
from tests.journal.testing import on_loop
from velaray.journal.objects.remote_objects import open_objects


class _Credentials(BaseHTTPRequestHandler):
    """Gives every caller another key, which expires in a minute."""

    given: list[str]

    def do_GET(self) -> None:
        self.given.append(f"KEY{len(self.given)}")
        document = {
            "AccessKeyId": self.given[-1],
            "SecretAccessKey": "secret",
            "Token": "token",
            "Expiration": f"{datetime.now(UTC) + timedelta(minutes=1):%Y-%m-%dT%H:%M:%SZ}",
        }
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The service of a container's provider; the keys that it gave."""
    given: list[str] = []
    handler = type("Handler", (_Credentials,), {"given": given})
    token = tmp_path / "token"
    token.write_text("token")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/credentials"
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
        yield given
        server.shutdown()
        thread.join()


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubStore]:
    with stub_store() as (store, url):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        yield store


@on_loop
async def test_credentials_that_expire_are_renewed(service: list[str], stub: StubStore) -> None:
    objects = open_objects(f"s3://{BUCKET}/prefix")
    await objects.create("a", b"1")
    await objects.get("a")
    while len(service) < 2:  # the library asks for new ones at most every 100 ms
        await objects.get("a")
    await objects.close()
    assert stub.keys[0] == "KEY0" and stub.keys[-1] == service[-1]
