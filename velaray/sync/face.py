"""Synchronous methods from those of the asyncio classes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from velaray.sync.loop import LoopThread

InnerT = TypeVar("InnerT")
InnerT_co = TypeVar("InnerT_co", covariant=True)
ResultT = TypeVar("ResultT")
P = ParamSpec("P")


class Face(Generic[InnerT_co]):
    """Base of the synchronous classes: calls the asyncio object within it.

    Methods that only call the asyncio object's are entries of a table, made by `blocking`,
    `on_loop` or `direct`. They have the signature and the docstring of the asyncio method.
    """

    def __init__(self, thread: LoopThread, inner: InnerT_co) -> None:
        self._thread = thread
        self._inner = inner

    def _run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        return self._thread.run(work)

    def __repr__(self) -> str:
        return repr(self._inner)


def blocking(
    method: Callable[Concatenate[InnerT, P], Coroutine[Any, Any, ResultT]],
) -> Callable[Concatenate[Face[InnerT], P], ResultT]:
    """Return a method that runs the coroutine ``method`` of the asyncio object and waits for it."""

    @wraps(method)
    def call(self: Face[InnerT], /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        return self._run(method(self._inner, *args, **kwargs))

    return call


def on_loop(
    method: Callable[Concatenate[InnerT, P], ResultT],
) -> Callable[Concatenate[Face[InnerT], P], ResultT]:
    """Return a method that calls ``method`` of the asyncio object on the loop's thread."""

    @wraps(method)
    async def work(inner: InnerT, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        return method(inner, *args, **kwargs)

    return blocking(work)


def direct(
    method: Callable[Concatenate[InnerT, P], ResultT],
) -> Callable[Concatenate[Face[InnerT], P], ResultT]:
    """Return a method that calls ``method`` of the asyncio object on the caller's thread."""

    @wraps(method)
    def call(self: Face[InnerT], /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        return method(self._inner, *args, **kwargs)

    return call
