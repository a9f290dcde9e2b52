"""Calls of a transform's user function, for all kinds of functions."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from velaray.client.exceptions import VelarayError
from velaray.client.message import Message, OutgoingMessage
from velaray.events.portable import PortableError
from velaray.pipelines.transform import Output

T = TypeVar("T")


class UserError(PortableError):
    """The user's function raised ``error``, or returned an output that can't be published."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error


Addressed = tuple[str, OutgoingMessage]
"""A topic, and a message for it."""


class Function:
    """The function of one worker. Synchronous functions run in a thread of their own."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._thread = ThreadPoolExecutor(1, "velaray-transform")
        self._asynchronous = False

    async def start(self) -> None:
        """Instantiate the function if it is a class. Raises the errors of its constructor."""
        wrapped = self._function
        while isinstance(wrapped, functools.partial):
            wrapped = wrapped.func
        if inspect.isclass(wrapped):
            self._function = wrapped = await self._in_thread(self._function)
        plain = inspect.isfunction(wrapped) or inspect.ismethod(wrapped)
        called = wrapped if plain else type(wrapped).__call__
        self._asynchronous = inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(
            called
        )

    def stop(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False)

    async def __call__(self, messages: list[Message]) -> list[Addressed]:
        """Return the function's outputs for ``messages``. Raises `UserError`."""
        if not self._asynchronous:
            return await self._in_thread(lambda: self._outputs(messages))
        with _blaming_the_user():
            return [_addressed(each) for each in await _collected(self._function(messages))]

    def _outputs(self, messages: list[Message]) -> list[Addressed]:
        with _blaming_the_user():
            return [_addressed(each) for each in self._function(messages) or ()]

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


@contextmanager
def _blaming_the_user() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise UserError(error) from error


async def _collected(result: Any) -> Iterable[Any]:
    if isinstance(result, Awaitable):
        return await result or ()
    return [each async for each in result]


def _addressed(output: Any) -> Addressed:
    if not isinstance(output, tuple) or not 2 <= len(output) <= len(Output._fields):
        raise TypeError(f"a transform returns velaray.pipelines.Output objects, not {output!r}")
    topic, value, key, properties, event_time, ordering_key = Output(*output)
    try:
        return topic, OutgoingMessage(
            value, properties, key, ordering_key, event_timestamp=event_time
        )
    except VelarayError as error:
        raise TypeError(f"{topic}: {error}") from error
