"""Methods that are written once, as coroutines, for a blocking client and for an asyncio client.

A method of a resource is an ``async def`` with `call`. In `velaray.aio.Admin` it is a coroutine
function. In `velaray.Admin` it returns its result: the blocking transport never suspends, so the
coroutine ends at once, without an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, update_wrapper, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
ModeT_co = TypeVar("ModeT_co", covariant=True)


class Blocking:
    """Marks clients whose methods return their results."""


class Asyncio:
    """Marks clients whose methods are coroutines."""


class HasMode(Protocol[ModeT_co]):
    """A client, or a resource of one."""

    @property
    def mode(self) -> type[ModeT_co]:
        """`Blocking` or `Asyncio`."""
        ...


class Call(Generic[P, ResultT]):
    """A method of both clients."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, ResultT]]) -> None:
        self.method = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, instance: None, owner: Any) -> Self: ...

    @overload
    def __get__(self, instance: HasMode[Blocking], owner: Any) -> Callable[P, ResultT]: ...

    @overload
    def __get__(
        self, instance: HasMode[Asyncio], owner: Any
    ) -> Callable[P, Coroutine[Any, Any, ResultT]]: ...

    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self
        bound = partial(self.method, instance)
        update_wrapper(bound, self.method)
        bound.__wrapped__ = self.method.__get__(instance)  # type: ignore[attr-defined]
        if instance.mode is Asyncio:
            return bound

        @wraps(bound)
        def run(*args: P.args, **kwargs: P.kwargs) -> ResultT:
            return _finished(bound(*args, **kwargs))

        return run


def call(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, ResultT]]) -> Call[P, ResultT]:
    """Make a coroutine function a method of both clients."""
    return Call(method)


def of_group(group: str, method: Call[P, ResultT]) -> Call[P, ResultT]:
    """Return a method of the client that calls ``method`` of one of its resources."""

    async def forward(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        return await method.method(getattr(client, group), *args, **kwargs)

    return Call(update_wrapper(forward, method.method))


def _finished(running: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The result of a coroutine that never suspends."""
    try:
        running.send(None)
    except StopIteration as end:
        result: ResultT = end.value
        return result
    running.close()
    raise RuntimeError("a blocking call was suspended")
