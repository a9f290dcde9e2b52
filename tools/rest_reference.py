"""The operations of the admin interface as tables, for ``docs/reference/rest.md``.

``make docs`` inserts them when it builds the site, so a new operation changes no page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from velaray.admin.api import groups
from velaray.admin.openapi import Description, Group

_VERBS = re.compile(r"(Read|Set|Remove) (?=the policy)")


def tables() -> str:
    """A section with a table for each kind of resource."""
    described = Description(groups())
    return "\n".join(_section(described, group) for group in described.groups)


def _section(described: Description, group: Group) -> str:
    paths, rows = described.document["paths"], ""
    for path, routes in groupby(group.routes, lambda route: route.operation.path):
        methods = [route.operation.method for route in routes]
        found = {method: paths[path][method.lower()] for method in methods}
        if _VERBS.match(found[methods[0]]["summary"]):  # a policy: one row for all methods
            about = _VERBS.sub("", found[methods[0]]["summary"])
            about = about[0].upper() + about[1:]
            rows += f"| `{', '.join(methods)}` `{path}` | {about}. |\n"
            continue
        for method, operation in found.items():
            rows += f"| `{method}` `{path}` | {' '.join(_cell(operation))} |\n"
    return f"## {group.name.capitalize()}\n\n| Operation | |\n|---|---|\n{rows}"


def _cell(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{found['summary']}.".replace("|", "\\|")
    query = [each["name"] for each in found["parameters"] if each["in"] == "query"]
    if query:
        yield f"Query: {', '.join(f'`{name}`' for name in query)}."
    if "requestBody" in found:
        content = found["requestBody"]["content"]["application/json"]
        yield f"Body: {_kind(content['schema'])}."
    answers = [_answer(answer) for status, answer in found["responses"].items() if status[0] == "2"]
    told = [answer for answer in answers if answer]
    if told:
        yield f"Answer: {' or '.join(told)}."


def _answer(answer: Mapping[str, Any]) -> str:
    content = answer.get("content", {})
    return "".join(_kind(each["schema"]) for each in content.values())


def _kind(schema: Mapping[str, Any]) -> str:
    """A JSON schema in a few words."""
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema["enum"])
    kind = schema.get("type", "any value")
    if kind == "array" and schema.get("items"):
        return f"list of {_kind(schema['items'])}"
    more = schema.get("additionalProperties")
    if kind == "object" and isinstance(more, dict) and more:
        return f"{_kind(more)} by name"
    return {"string": "text", "integer": "number"}.get(kind, kind)
