"""Times that visitors write."""

from __future__ import annotations

from datetime import UTC, datetime

from velaray.console.visit import FormError


def time_of(text: str) -> int:
    """Milliseconds since 1970, from a number or a date and time (UTC unless it has a time zone).

    Raises `FormError`.
    """
    if text.isascii() and text.isdigit() and len(text) < 16:
        return int(text)
    try:
        found = datetime.fromisoformat(text)
        aware = found if found.tzinfo else found.replace(tzinfo=UTC)
        return max(round(aware.timestamp() * 1000), 0)
    except (ValueError, OverflowError) as error:
        raise FormError(f"write a time such as 2024-12-31T23:59, not {text[:40]!r}") from error
