"""The description of the REST interface as an OpenAPI document, and a page to try it.

The document follows from the operations and the types of their bodies and answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from importlib.resources import files
from typing import Any, NamedTuple

from aiohttp import web
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from velaray.admin.binding import Route
from velaray.admin.http import answer
from velaray.broker.session import SERVER_VERSION
from velaray.client.admin.operations import (
    JSON,
    AnyObject,
    Operation,
    Problem,
    reads,
    variable,
)

OPENAPI = "3.1.0"
_POLICY = (
    "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
)


class Group(NamedTuple):
    """The operations of one kind of resource."""

    name: str
    about: str
    routes: Sequence[Route]


class Description:
    """The description of the operations of these groups."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = groups

    @cached_property
    def document(self) -> dict[str, Any]:
        """The OpenAPI document."""
        schemas = _Schemas(route.operation for group in self.groups for route in group.routes)
        paths: dict[str, dict[str, Any]] = {}
        for group in self.groups:
            for route in group.routes:
                methods = paths.setdefault(route.operation.path, {})
                methods[route.operation.method.lower()] = _operation(group, route, schemas)
        return {
            "openapi": OPENAPI,
            "info": {
                "title": "velaray",
                "version": SERVER_VERSION,
                "description": "The admin interface, in the form of Apache Pulsar's. Where a "
                "cluster requires tokens, every request needs one.",
            },
            "security": [{}, {"token": []}],
            "tags": [{"name": each.name, "description": each.about} for each in self.groups],
            "paths": paths,
            "components": {
                "schemas": schemas.components,
                "responses": {"Problem": _content("An error.", schemas.of(Problem))},
                "securitySchemes": {
                    "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
                },
            },
        }


DESCRIPTION = web.AppKey("description", Description)


async def document(request: web.Request) -> web.Response:
    """This description of the REST interface, as an OpenAPI document."""
    return answer(request.app[DESCRIPTION].document)


async def page(request: web.Request) -> web.Response:
    """A page that lists the operations and sends requests. It loads nothing from elsewhere."""
    text = files("velaray.admin").joinpath("docs.html").read_text("utf-8")
    headers = {"Content-Security-Policy": _POLICY}
    return web.Response(text=text, content_type="text/html", headers=headers)


class _WithoutTitles(GenerateJsonSchema):
    """Schemas without titles, which would only repeat the names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
        found = super().typed_dict_schema(schema)
        found.pop("title", None)
        return found


class _Schemas:
    """The JSON schemas of the types that operations name."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        kinds = {Problem, *(kind for each in operations for kind in _types(each))}
        described = [(kind, "validation", TypeAdapter(kind)) for kind in sorted(kinds, key=repr)]
        found, common = TypeAdapter.json_schemas(
            described,  # type: ignore[arg-type]
            ref_template="#/components/schemas/{model}",
            schema_generator=_WithoutTitles,
        )
        self._found = {kind: schema for (kind, _), schema in found.items()}
        self.components: dict[str, Any] = common.get("$defs", {})

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema of a type."""
        return self._found[kind]


def _types(operation: Operation) -> Iterator[Any]:
    yield from (variable(name)[1] for name in operation.variables)
    yield from (each.type for each in operation.query)
    yield from (each for each in operation.answers.values() if each is not None)
    if operation.body is not None:
        yield operation.body


def _operation(group: Group, route: Route, schemas: _Schemas) -> dict[str, Any]:
    operation = route.operation
    text = re.sub(r"\s*\n\s*", " ", route.description.strip()).replace("``", "`")
    summary, _, rest = text.partition(". ")
    found: dict[str, Any] = {
        "tags": [group.name],
        "summary": summary.rstrip("."),
        "operationId": re.sub(r"\W+", "_", operation.name).strip("_").lower(),
        "parameters": [*_parameters(operation, schemas)],
        "responses": {
            **{
                str(status): _answer(operation, kind, schemas)
                for status, kind in operation.answers.items()
            },
            "default": {"$ref": "#/components/responses/Problem"},
        },
    }
    if rest:
        found["description"] = rest
    if operation.body is not None:
        content = {JSON: {"schema": schemas.of(operation.body)}}
        found["requestBody"] = {"content": content, "required": operation.needs_body}
    return found


def _parameters(operation: Operation, schemas: _Schemas) -> Iterator[dict[str, Any]]:
    for name in operation.variables:
        about, kind = variable(name)
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "description": about,
            "schema": schemas.of(kind),
        }
    for each in operation.query:
        schema = {**schemas.of(each.type)}
        if each.default not in (None, ""):
            schema["default"] = each.default
        yield {"name": each.name, "in": "query", "description": each.about, "schema": schema}


def _answer(operation: Operation, kind: Any, schemas: _Schemas) -> dict[str, Any]:
    if kind is None:
        return {"description": "Done."}
    return _content("The answer.", schemas.of(kind), operation.content)


def _content(about: str, schema: dict[str, Any], content: str = JSON) -> dict[str, Any]:
    return {"description": about, "content": {content: {"schema": schema}}}


_PAGE = Operation("GET", "/docs", answers={200: str}, content="text/html")

ROUTES: tuple[Route, ...] = (
    Route(reads("/openapi.json", AnyObject), document),
    Route(_PAGE, page),
)
