"""The administration clients: their resources, their methods and their connections."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import velaray.aio
from velaray.client.admin import Admin, Invalid, NotFound, Unavailable
from velaray.client.admin.admin import AdminCalls
from velaray.client.admin.calls import Call
from velaray.client.admin.connection import Resource
from velaray.client.admin.transports import Answer, BlockingTransport, Sending
from velaray.client.tls import Security

NOWHERE = "http://nowhere:1"


class Recording(BlockingTransport):
    """Records requests instead of sending them."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.sent: list[tuple[str, str, bytes | None]] = []

    async def send(self, sending: Sending) -> Answer:
        self.sent.append((sending.method, sending.url, sending.body))
        return Answer(204, {}, b"")


class Recorded(Admin):
    def __init__(self) -> None:
        self.transport = Recording()
        super().__init__(NOWHERE)

    def _new_transport(self, timeout_s: float, tls: Security | None) -> BlockingTransport:
        return self.transport


def test_both_ways_send_the_same_requests() -> None:
    first, second = Recorded(), Recorded()
    first.topics.create("flights", partitions=4)
    first.subscriptions.delete("flights", "counting", force=True)
    second.create_topic("flights", partitions=4)
    second.delete_subscription("flights", "counting", force=True)
    assert first.transport.sent == second.transport.sent
    assert [method for method, _, _ in first.transport.sent] == ["PUT", "DELETE"]
    assert first.transport.sent[1][1] == (
        f"{NOWHERE}/admin/v2/persistent/public/default/flights/subscription/counting?force=true"
    )


def test_names_are_quoted() -> None:
    admin = Recorded()
    admin.subscriptions.skip("a b", "c/d?e")
    (_, url, _) = admin.transport.sent[0]
    assert url.endswith("/default/a%20b/subscription/c%2Fd%3Fe/skip_all")


def test_calls_of_the_class_name_calls_of_resources() -> None:
    calls = {name: each for name, each in vars(AdminCalls).items() if isinstance(each, Call)}
    assert len(calls) > 70
    resources = [each for each in vars(Admin(NOWHERE)).values() if isinstance(each, Resource)]
    written = {
        inspect.unwrap(each.method)
        for resource in resources
        for each in vars(type(resource)).values()
        if isinstance(each, Call)
    }
    named = {inspect.unwrap(each.method) for each in calls.values()}
    old = {calls[name].method for name in ("request", "why", "ledger_census")}
    assert named - old <= written


def test_methods_have_signatures_and_documentation() -> None:
    for admin in (Admin(NOWHERE), velaray.aio.Admin(NOWHERE)):
        signature = inspect.signature(admin.create_topic)
        assert list(signature.parameters) == ["topic", "partitions", "properties"]
        assert "Raises `Conflict`" in (admin.create_topic.__doc__ or "")


def test_both_clients_have_the_same_methods() -> None:
    assert inspect.iscoroutinefunction(velaray.aio.Admin(NOWHERE).topics.create)
    assert not inspect.iscoroutinefunction(Admin(NOWHERE).topics.create)
    parameters = [inspect.signature(each) for each in (Admin, velaray.aio.Admin)]
    assert parameters[0] == parameters[1]


def test_an_admin_can_be_sent_to_another_process() -> None:
    copied = pickle.loads(pickle.dumps(Admin(NOWHERE, token="t", timeout_s=3)))
    assert (type(copied), copied.url) == (Admin, NOWHERE)


# -- connections -------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    """Answers every request with its path, and counts connections."""

    daemon_threads = True

    def __init__(self) -> None:
        self.connections = 0
        self.requests: list[str] = []
        self.open: list[socket.socket] = []
        self.waiting = threading.Barrier(1)
        self.ended = threading.Semaphore(0)
        """Counts the connections that have ended."""
        self.drops = 0
        """How many requests end with their connection, without an answer."""
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.connections += 1
        self.open.append(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.ended.release()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def answer(self) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.waiting.wait(10)
        if self.server.drops:
            self.server.drops -= 1
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        status, body = (404, b'{"reason": "no"}') if "gone" in self.path else (200, b'["t"]')
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = answer

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.shutdown()
    running.server_close()


def test_requests_one_after_the_other_use_one_connection(server: Server) -> None:
    with Admin(server.url) as admin:
        for _ in range(3):
            assert admin.tenants() == ["t"]
        with pytest.raises(NotFound, match="no"):
            admin.tenants.get("gone")
        admin.tenants.delete("t")
    assert server.connections == 1
    assert admin.tenants() == ["t"]  # a closed one connects again
    assert server.connections == 2


def test_threads_at_the_same_time_use_a_connection_each(server: Server) -> None:
    server.waiting = threading.Barrier(4)
    with Admin(server.url) as admin:
        for _ in range(2):
            threads = [threading.Thread(target=admin.tenants) for _ in range(4)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
    assert server.connections == 4
    assert len(server.requests) == 8


def test_a_connection_that_the_server_has_closed_is_not_used_again(server: Server) -> None:
    with Admin(server.url) as admin:
        admin.tenants.delete("a")
        server.open[0].shutdown(socket.SHUT_RDWR)
        admin.tenants.delete("b")
    assert server.requests == ["DELETE /admin/v2/tenants/a", "DELETE /admin/v2/tenants/b"]
    assert server.connections == 2


@pytest.mark.parametrize(
    ("ask", "sent"),
    [(lambda admin: admin.tenants(), 2), (lambda admin: admin.topics.unload("t"), 1)],
    ids=["a question is repeated", "a change is not"],
)
def test_a_kept_connection_that_ends_without_an_answer(
    server: Server, ask: Callable[[Admin], Any], sent: int
) -> None:
    with Admin(server.url) as admin:
        admin.tenants()
        server.drops, server.requests = 1, []
        if sent == 2:
            assert ask(admin) == ["t"]
        else:
            with pytest.raises(Unavailable, match="is it the admin port"):
                ask(admin)
        assert len(server.requests) == sent


@pytest.mark.parametrize(
    ("ask", "sent"),
    [
        (lambda admin: admin.tenants(), 2),
        (lambda admin: admin.tenants.delete("t"), 1),
        (lambda admin: admin.topics.unload("t"), 1),
    ],
    ids=["GET", "DELETE", "PUT"],
)
def test_the_asyncio_client_repeats_no_change(
    server: Server, ask: Callable[[velaray.aio.Admin], Any], sent: int
) -> None:
    async def run() -> None:
        async with velaray.aio.Admin(server.url) as admin:
            await admin.tenants()
            server.drops, server.requests = 1, []
            if sent == 2:
                assert await ask(admin) == ["t"]
            else:
                with pytest.raises(Unavailable, match="is it the admin port"):
                    await ask(admin)

    asyncio.run(run())
    assert len(server.requests) == sent


def test_a_question_is_repeated_once(server: Server) -> None:
    server.drops = 3
    with Admin(server.url) as admin, pytest.raises(Unavailable):
        admin.tenants()
    assert len(server.requests) == 2


def test_an_admin_that_nobody_holds_closes_its_connections(server: Server) -> None:
    Admin(server.url).tenants()
    assert server.ended.acquire(timeout=10)


def test_the_asyncio_client_sends_the_same_requests_at_the_same_time(server: Server) -> None:
    server.waiting = threading.Barrier(3)

    async def ask() -> None:
        async with velaray.aio.Admin(server.url) as admin:
            found = await asyncio.gather(*(admin.tenants() for _ in range(3)))
            assert found == [["t"]] * 3
            server.waiting = threading.Barrier(1)
            with pytest.raises(NotFound, match="no"):
                await admin.tenant("gone")
            await admin.delete_tenant("t")
            with pytest.raises(Invalid):
                await admin.policies("nowhere")

    asyncio.run(ask())
    assert server.connections == 3
    assert server.requests[-1] == "DELETE /admin/v2/tenants/t"


def test_the_asyncio_client_names_a_cluster_that_does_not_answer() -> None:
    async def ask() -> None:
        async with velaray.aio.Admin("http://127.0.0.1:9") as admin:
            await admin.health()

    with pytest.raises(Unavailable, match="is velaray running there"):
        asyncio.run(ask())
