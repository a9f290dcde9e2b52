"""The schema of a topic: its versions, the difference of two of them, and a check of a new one."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from velaray.console.pages import page
from velaray.console.topics import full_name
from velaray.console.visit import Visit
from velaray.schemas import SchemaType


def pretty(version: Mapping[str, Any]) -> str:
    """The data of a version on several lines, if it is JSON."""
    try:
        return json.dumps(json.loads(version["data"]), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return str(version["data"])


def difference(versions: Sequence[Mapping[str, Any]], old: int, new: int) -> str:
    """The difference of two versions, line by line; "" if one of them isn't there."""
    known = {each["version"]: each for each in versions}
    if old not in known or new not in known:
        return ""
    before, after = (pretty(known[number]).splitlines() for number in (old, new))
    lines = difflib.unified_diff(
        before, after, f"version {old}", f"version {new}", lineterm="", n=len(before) + len(after)
    )
    return "\n".join(lines) or "The versions are equal."


async def show(visit: Visit) -> web.Response:
    """The versions of a topic's schema; with a form's schema, whether it could be registered."""
    topic = full_name(visit.needed("topic"))
    versions = await visit.admin.schemas(topic, deleted=True)
    numbers = [each["version"] for each in versions if each["type"]]
    newest = numbers[-1] if numbers else 0
    old = visit.number("old", numbers[-2] if len(numbers) > 1 else newest)
    new = visit.number("new", newest)
    text, kind = visit.text("schema"), visit.text("type", "AVRO")
    checked = None
    if visit.request.method == "POST":
        checked = await visit.admin.schemas.check(topic, kind, text)
    return visit.render(
        "schemas.html",
        topic=topic,
        versions=[(each, pretty(each)) for each in reversed(versions)],
        numbers=numbers,
        old=old,
        new=new,
        difference=difference(versions, old, new) if len(numbers) > 1 else "",
        types=[str(each) for each in SchemaType],
        type=kind,
        schema=text,
        checked=checked,
    )


ROUTES = (("GET", "/console/schemas", page(show)), ("POST", "/console/schemas", page(show)))
