"""The limits of values in the bodies of requests, besides the types that operations declare."""

from __future__ import annotations

from math import isfinite
from typing import Any

from velaray.events.ids import INT64_MAX
from velaray.schemas.validation import MAX_SCHEMA_BYTES
from velaray.wire.limits import MAX_PROPERTIES, MAX_TEXT_BYTES

MAX_DEPTH = 32
"""The most levels of lists and objects in each other."""

MAX_MEMBERS = 10_000
"""The most members of a list. An object has at most `MAX_PROPERTIES` fields."""


def fault_in_value(value: Any) -> str:
    """Which part of a JSON value is out of its limit, and why; "" if none is."""
    pending = [("the body", value, 1)]
    while pending:
        where, found, depth = pending.pop()
        fault = _fault_of(found, depth)
        if fault:
            return f"{where} {fault}"
        if isinstance(found, dict):
            pending += [(f"field {key[:40]!r}", each, depth + 1) for key, each in found.items()]
        elif isinstance(found, list):
            pending += [(f"a member of {where}", each, depth + 1) for each in found]
    return ""


def _fault_of(value: Any, depth: int) -> str:
    if isinstance(value, (dict, list)):
        if depth > MAX_DEPTH:
            return f"is nested deeper than {MAX_DEPTH} levels"
        most = MAX_PROPERTIES if isinstance(value, dict) else MAX_MEMBERS
        if len(value) > most:
            return f"has {len(value)} members; it may have {most}"
        if isinstance(value, dict) and any(_size(key) > MAX_TEXT_BYTES for key in value):
            return f"has a field whose name has more than {MAX_TEXT_BYTES} bytes"
    elif isinstance(value, str):
        if _size(value) > MAX_SCHEMA_BYTES:
            return f"has {_size(value)} bytes; it may have {MAX_SCHEMA_BYTES}"
    elif isinstance(value, float):
        if not isfinite(value):
            return "is no finite number"
    elif isinstance(value, int) and abs(value) > INT64_MAX:
        return f"is out of range: a number may be {INT64_MAX} at most"
    return ""


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
