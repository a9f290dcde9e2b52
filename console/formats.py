"""Numbers, sizes and times as people read them; the filters of the templates."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_PERSISTENT = "persistent://"


def number(value: float | None) -> str:
    """A number with thousands separated; a dash if it is unknown."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def counted(count: float, what: str, many: str = "") -> str:
    """A count with its noun; the plural is ``many``, or the noun with s."""
    return f"{number(count)} {what if count == 1 else many or what + 's'}"


def size(value: float | None) -> str:
    """Bytes in the largest unit that leaves at least 1."""
    if value is None:
        return "–"
    found = float(value)
    for unit in _UNITS:
        if found < 1024 or unit == _UNITS[-1]:
            break
        found /= 1024
    return f"{found:,.0f} {unit}" if unit == "B" else f"{found:,.1f} {unit}"


def rate(value: float | None) -> str:
    """Messages a second."""
    return "–" if value is None else f"{number(round(value, 1))}/s"


def age(seconds: float | None) -> str:
    """A duration in one or two units."""
    if seconds is None:
        return "–"
    left = int(seconds)
    if left < 60:
        return f"{left} s"
    if left < 3600:
        return f"{left // 60} min {left % 60} s"
    if left < 86400:
        return f"{left // 3600} h {left % 3600 // 60} min"
    return f"{left // 86400} d {left % 86400 // 3600} h"


def when(at_ms: float | None) -> str:
    """A time, in milliseconds since 1970, as date and time in UTC; a dash for 0 or None."""
    if not at_ms:
        return "–"
    try:
        found = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(at_ms)
    return found.strftime("%Y-%m-%d %H:%M:%S.") + f"{int(at_ms) % 1000:03d}"


def since(at_ms: float | None) -> str:
    """How long ago a time was."""
    return "–" if not at_ms else f"{age(max(time.time() - at_ms / 1000, 0))} ago"


def until(at_ms: float) -> str:
    """How long it takes until a time."""
    return f"in {age(max(at_ms / 1000 - time.time(), 0))}"


def short(topic: str) -> str:
    """A topic without ``persistent://``."""
    return topic.removeprefix(_PERSISTENT)


def as_json(value: Any) -> str:
    """A value as indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True, default=str)


def plain(value: Any) -> str:
    """A value on one line: texts as they are, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


FILTERS: Mapping[str, Callable[..., str]] = {
    "number": number,
    "size": size,
    "rate": rate,
    "age": age,
    "when": when,
    "since": since,
    "until": until,
    "short": short,
    "as_json": as_json,
    "plain": plain,
    "json": json.dumps,
}
