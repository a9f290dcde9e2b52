"""Context managers that close an object, and iteration until an object is closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Self, TypeVar

from velaray.client.exceptions import AlreadyClosed

ItemT = TypeVar("ItemT")


class Closing(ABC):
    """Base of classes whose objects can be used in a ``with`` statement."""

    @abstractmethod
    def close(self) -> None:
        """Close the object; the end of the block calls this, also after an exception."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class AsyncClosing(ABC):
    """Base of classes whose objects can be used in an ``async with`` statement."""

    @abstractmethod
    async def close(self) -> None:
        """Close the object; the end of the block calls this, also after an exception."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()


def until_closed(receive: Callable[[], ItemT]) -> Iterator[ItemT]:
    """Yield what ``receive`` returns, until it raises `AlreadyClosed`."""
    while True:
        try:
            item = receive()
        except AlreadyClosed:
            return
        yield item


async def each_until_closed(receive: Callable[[], Awaitable[ItemT]]) -> AsyncIterator[ItemT]:
    """Yield what ``receive`` returns when awaited, until it raises `AlreadyClosed`."""
    while True:
        try:
            item = await receive()
        except AlreadyClosed:
            return
        yield item
