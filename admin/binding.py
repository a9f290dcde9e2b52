"""Operations with their handlers: checks of queries and bodies before a handler runs."""

from __future__ import annotations

import json
from types import UnionType
from typing import Any, NamedTuple, TypeVar, get_origin

from aiohttp import web
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from velaray.admin.http import AdminError, Handler, json_body
from velaray.client.admin.operations import Operation, Parameter

ValueT = TypeVar("ValueT")

_QUERY = web.RequestKey("query", dict[str, Any])
_BODY = web.RequestKey("body", object)
_FLAGS = {"true": True, "false": False}


class Route(NamedTuple):
    """An operation and its handler, whose docstring describes it."""

    operation: Operation
    handler: Handler
    about: str = ""
    """The description, if the handler serves several operations."""

    @property
    def description(self) -> str:
        """What the operation does."""
        return self.about or self.handler.__doc__ or ""


def bound(route: Route) -> Handler:
    """The handler of the route, which runs if the query and the body are valid.

    It reads them with `given` and `body_of`. A body of type ``Any``, annotated or not, is left to
    the handler.
    """
    operation, handler = route.operation, route.handler
    parameters = [(each, TypeAdapter(each.type)) for each in operation.query]
    body = None if _is_any(operation.body) else TypeAdapter(operation.body)

    async def handle(request: web.Request) -> web.StreamResponse:
        request[_QUERY] = {
            parameter.name: _value(parameter, adapter, request.query[parameter.name])
            for parameter, adapter in parameters
            if parameter.name in request.query
        }
        if body is not None:
            request[_BODY] = _checked(operation, body, await json_body(request))
        return await handler(request)

    return handle


def _is_any(kind: Any) -> bool:
    return kind in (None, Any) or getattr(kind, "__origin__", None) is Any


def given(request: web.Request, parameter: Parameter[ValueT]) -> ValueT:
    """The value of a query parameter, or its default."""
    found: ValueT = request[_QUERY].get(parameter.name, parameter.default)
    return found


def body_of(request: web.Request) -> Any:
    """The body, which has the type that the operation describes."""
    return request[_BODY]


def _value(parameter: Parameter[Any], adapter: TypeAdapter[Any], text: str) -> Any:
    """The value that ``text`` stands for. Raises `AdminError`."""
    value: Any = text
    if parameter.type is bool:
        value = _FLAGS.get(text.lower(), text)
    elif _is_number(parameter.type) and text.isascii() and text.isdigit() and len(text) < 20:
        value = int(text)
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError as error:
        must = _must(error.errors(include_url=False)[0])
        raise AdminError(
            400, f"query parameter {parameter.name} {must}, not {text[:40]!r}"
        ) from error


def _is_number(kind: Any) -> bool:
    return kind is int or getattr(kind, "__origin__", None) is int


def _checked(operation: Operation, adapter: TypeAdapter[Any], value: Any) -> Any:
    """The body, if it has the type that the operation describes. Raises `AdminError`.

    As Pulsar's JSON reader does, it takes fields that are null for absent, and ignores unknown
    fields.
    """
    if operation.takes_object and value is None:
        value = {}
    if isinstance(value, dict) and get_origin(operation.body) is not dict:
        value = {name: field for name, field in value.items() if field is not None}
    try:
        adapter.validate_python(value, strict=True)
    except ValidationError as error:
        raise AdminError(400, _worded(operation, error)) from error
    return value


def _worded(operation: Operation, error: ValidationError) -> str:
    """The first problem of a body, in words."""
    found = error.errors(include_url=False)
    if isinstance(operation.body, UnionType):  # the problems of the type that fits best
        found.sort(key=lambda problem: -len(problem["loc"]))
        places = found[0]["loc"][1:]
    else:
        places = found[0]["loc"]
    problem = found[0]
    where = "".join(f"[{place}]" if isinstance(place, int) else f".{place}" for place in places)
    name = where.removeprefix(".") or "the body"
    if problem["type"] == "missing":
        return f"{name} is missing"
    return f"{name} {_must(problem)}, not {_kind(problem['input'])}"


def _must(problem: ErrorDetails) -> str:
    """What a value must be, in the words of the other errors."""
    kind, context = problem["type"], problem.get("ctx", {})
    words = {
        "bool_type": "true or false",
        "dict_type": "a JSON object",
        "int_type": "a whole number",
        "list_type": "a list",
        "literal_error": context.get("expected", "").replace("'", ""),
        "string_too_short": "a text that isn't empty",
        "string_type": "a text",
    }
    if kind in ("greater_than_equal", "less_than_equal"):
        limit = f"at least {context['ge']}" if "ge" in context else f"at most {context['le']}"
        return f"must be {limit}"
    return f"must be {words[kind]}" if kind in words else f"isn't valid ({problem['msg']})"


def _kind(value: Any) -> str:
    """A word for the type of a JSON value. The value itself may be secret."""
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, str):
        return "a text" if value else "an empty text"
    return "a list" if isinstance(value, list) else "an object"
