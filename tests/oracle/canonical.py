"""A canonical form of replies, effects and events: equal values, equal bytes.

Class names are those of the recording (`tests.oracle.names`), fields are taken by position, and
sets are sorted, so that a renamed class or field gives the same bytes. The texts of refusals are
left out: they are written for people and may be reworded.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Set
from enum import Enum
from typing import Any

from google.protobuf.message import Message

from tests.oracle.names import recorded_class_name
from velaray.actors.machine import Refusal

DIGEST_SIZE = 8


def canonical(value: Any) -> bytes:
    """The canonical bytes of ``value``. Raises TypeError for a type that has none."""
    match value:
        case None | bool() | float():
            return _tagged(b"k", repr(value).encode())
        case Enum():
            return _tagged(b"v", canonical(value.value))
        case int():
            return _tagged(b"i", b"%d" % value)
        case str():
            return _tagged(b"s", value.encode())
        case bytes() | bytearray() | memoryview():
            return _tagged(b"b", bytes(value))
        case Message():
            body = value.SerializeToString(deterministic=True)
            return _tagged(b"m", value.DESCRIPTOR.name.encode() + b"\0" + body)
        case Refusal():
            return _tagged(b"r", canonical(value.reason))
        case Mapping():
            pairs = sorted(canonical(key) + canonical(one) for key, one in value.items())
            return _tagged(b"d", b"".join(pairs))
        case Set():
            return _tagged(b"u", b"".join(sorted(map(canonical, value))))
        case tuple() | list():
            return _tagged(b"l", b"".join(map(canonical, value)))
    return _instance(value)


def digest_of(value: Any) -> bytes:
    """A short digest of the canonical bytes."""
    return hashlib.blake2b(canonical(value), digest_size=DIGEST_SIZE).digest()


def _instance(value: Any) -> bytes:
    name = recorded_class_name(type(value).__name__).encode()
    if dataclasses.is_dataclass(value):
        fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, BaseException):
        fields = []
    elif hasattr(value, "__iter__"):
        fields = list(value)
    else:
        slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        if not slots and not hasattr(value, "__dict__"):
            raise TypeError(f"{type(value).__qualname__} has no canonical form")
        fields = [getattr(value, slot) for slot in slots] or list(vars(value).values())
    return _tagged(b"o", name + b"\0" + b"".join(map(canonical, fields)))


def _tagged(tag: bytes, body: bytes) -> bytes:
    return tag + b"%d:" % len(body) + body
