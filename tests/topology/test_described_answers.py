"""The checks of answers and of recorded requests find what isn't described."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from tests.support.described_answers import checked
from tests.support.recorded_http import Contract, Exchange
from velaray.admin.api import groups
from velaray.admin.binding import Route
from velaray.admin.openapi import Description
from velaray.client.admin.hosts import Moved
from velaray.client.admin.operations import TEXT, Operation, reads

_OPERATIONS = {
    "moved": reads("/", Moved),
    "texts": reads("/", dict[str, str]),
    "nothing": Operation("GET", "/"),
    "text": Operation("GET", "/", answers={200: str}, content=TEXT),
}


def _status(operation: Operation, answer: dict[str, Any]) -> int:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(**answer)

    async def ask() -> int:
        app = web.Application()
        app.router.add_get("/", checked(Route(operation, handler)))
        async with TestClient(TestServer(app)) as http:
            return (await http.get("/")).status

    return asyncio.run(ask())


JSON = {"content_type": "application/json"}


@pytest.mark.parametrize(
    ("operation", "answer", "status"),
    [
        ("moved", {"text": '{"moved": 3}', **JSON}, 200),
        ("moved", {"text": '{"moved": "3"}', **JSON}, 500),
        ("moved", {"text": '{"moved": 3, "more": 1}', **JSON}, 500),
        ("moved", {"text": "{}", **JSON}, 500),
        ("moved", {"text": '{"moved": 3}', "status": 201, **JSON}, 500),
        ("moved", {"text": '{"moved": 3}'}, 500),
        ("moved", {"text": "no", "status": 404}, 404),
        ("texts", {"text": '{"a": "b"}', **JSON}, 200),
        ("texts", {"text": '{"a": 1}', **JSON}, 500),
        ("nothing", {"status": 204}, 204),
        ("nothing", {"text": "ok"}, 500),
        ("text", {"text": "ok"}, 200),
        ("text", {"text": "1", **JSON}, 500),
    ],
)
def test_undescribed_answers_fail(operation: str, answer: dict[str, Any], status: int) -> None:
    assert _status(_OPERATIONS[operation], answer) == status


@pytest.fixture(scope="module")
def contract() -> Contract:
    return Contract(Description(groups()).document)


TENANT = "/admin/v2/tenants/t"


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (("PUT", TENANT, b'{"adminRoles": []}', 204, "", b""), ""),
        (("PUT", TENANT, b'{"adminRoles": 1}', 204, "", b""), "body $.adminRoles: 1 is not"),
        (("PUT", TENANT, b"{}", 200, "", b""), "status 200 isn't described"),
        (("PUT", TENANT, b"{}", 204, "", b"more"), "an answer with content"),
        (("DELETE", TENANT, b"{}", 204, "", b""), "an undescribed body"),
        (("PATCH", TENANT, b"", 204, "", b""), "no such operation, status 204"),
        (("GET", "/admin/v2/bookies", b"", 501, "application/json", b"{}"), ""),
        (("GET", TENANT, b"", 200, "application/json", b'{"adminRoles": [2]}'), "2 is not of"),
        (("GET", TENANT, b"", 200, "text/plain", b"{}"), "an answer of type 'text/plain'"),
        (("GET", TENANT, b"", 404, "application/json", b'{"reason": "no"}'), ""),
        (("GET", TENANT, b"", 404, "application/json", b"{}"), "'reason' is a required"),
        (
            ("GET", "/admin/v3/transactions?most=x", b"", 200, "application/json", b"{}"),
            "query most: $: 'x' is not of type",
        ),
        (
            ("POST", f"{TENANT}/home", b"", 204, "", b""),
            "the body is missing",
        ),
    ],
)
def test_undescribed_requests_and_answers_are_found(
    contract: Contract, found: tuple[Any, ...], fault: str
) -> None:
    faults = contract.faults(Exchange(*found))
    assert any(fault in each for each in faults) if fault else faults == []
