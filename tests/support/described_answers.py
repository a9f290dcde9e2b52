"""A check of the answers of the admin interface: each has the type that its operation describes."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from velaray.admin.binding import Route, bound
from velaray.admin.http import Handler
from velaray.client.admin.operations import JSON, Operation


class Undescribed(AssertionError):
    """An answer that its operation doesn't describe."""


def checked(route: Route) -> Handler:
    """`bound`, which fails if the answer isn't described, so the status is 500."""
    handler, operation = bound(route), route.operation
    adapters = {
        status: TypeAdapter[Any](kind)
        for status, kind in operation.answers.items()
        if kind is not None and operation.content == JSON
    }

    async def handle(request: web.Request) -> web.StreamResponse:
        answer = await handler(request)
        if answer.status < 300:
            fault = fault_of(operation, answer, adapters.get(answer.status))
            if fault:
                raise Undescribed(f"{operation.name} answers {answer.status}: {fault}")
        return answer

    return handle


def fault_of(
    operation: Operation, answer: web.StreamResponse, adapter: TypeAdapter[Any] | None
) -> str:
    """What isn't described; "" if all is."""
    if answer.status not in operation.answers:
        return "no such status"
    body = answer.body if isinstance(answer, web.Response) else b""
    if operation.answers[answer.status] is None:
        return f"content {body!r}" if body else ""
    if answer.content_type != operation.content:
        return f"it is {answer.content_type}"
    if adapter is None:
        return ""
    assert isinstance(body, bytes)
    try:
        adapter.validate_json(body, strict=True, extra="forbid")
    except ValidationError as error:
        wrong = ["{loc}: {msg}".format(**each) for each in error.errors(include_url=False)]
        return "; ".join(wrong[:5])
    return ""
