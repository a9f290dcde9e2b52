"""Journal keys as directory paths."""

from __future__ import annotations

import re
from typing import Final

from velaray.journal.errors import UnsafeKey

MAX_PART: Final = 200
"""Bytes that one part of a key may have, percent-encoding included: file systems stop at
255."""

_SAFE: Final = re.compile(r"[A-Za-z0-9_.~%=:-]+")
_EMPTY: Final = "+"
"""The name of an empty part; ``+`` is never part of an encoded one."""


def directory_of(journal: str) -> str:
    """The relative directory of a journal.

    Raises `UnsafeKey` naming the part that can't be a file name.
    """
    return "/".join(_encode(journal, part) for part in journal.split("/"))


def journal_of(directory: str) -> str:
    """The inverse of `directory_of`."""
    return "/".join(_decode(name) for name in directory.split("/"))


def _encode(journal: str, part: str) -> str:
    if not part:
        return _EMPTY
    if len(part) > MAX_PART:
        raise UnsafeKey(journal, part, f"is longer than {MAX_PART} bytes; use a shorter name")
    if not _SAFE.fullmatch(part) or not part.replace("%2E", ""):
        raise UnsafeKey(journal, part, "is not percent-encoded as an actor key is")
    if not part.strip("."):
        return "%2E" * len(part)
    return part


def _decode(name: str) -> str:
    if name == _EMPTY:
        return ""
    if not name.replace("%2E", ""):
        return name.replace("%2E", ".")
    return name
