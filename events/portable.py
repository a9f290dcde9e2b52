"""Errors that can be sent to another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

ErrorT = TypeVar("ErrorT", bound="PortableError")
_State = tuple[dict[str, Any], BaseException | None]


class PortableError(Exception):
    """Base of errors that keep their text and attributes when they are pickled.

    Python rebuilds an exception by calling its class with the text, which fails where the
    constructor takes anything else. A cause is kept if it is a `PortableError` as well.
    """

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...], _State]:
        cause = self.__cause__ if isinstance(self.__cause__, PortableError) else None
        return _rebuild, (type(self), self.args), (self.__dict__, cause)

    def __setstate__(self, state: _State | dict[str, Any] | None) -> None:
        attributes, cause = state if isinstance(state, tuple) else (state or {}, None)
        self.__dict__.update(attributes)
        self.__cause__ = cause


def _rebuild(kind: type[ErrorT], args: tuple[Any, ...]) -> ErrorT:
    return kind.__new__(kind, *args)
