"""The synchronous table view."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self

from velaray.client.schema.base import T
from velaray.client.table_view import TableView as AioTableView
from velaray.sync.loop import LoopThread


class TableView(Generic[T]):
    """A live map from key to newest value. Created by `velaray.Client.create_table_view`.

    A tombstone or an empty value removes its key. Messages without a key are ignored. Memory use is
    that of all keys and their newest values. A value that can't be decoded is logged, and the
    previous value stays. A new view holds everything that was published before its creation.
    """

    def __init__(self, thread: LoopThread, view: AioTableView[T]) -> None:
        self._thread = thread
        self._view = view
        self._closed = False

    def get(self, key: str) -> T | None:
        """The newest value of ``key``, None if there is none.

        Raises the error that ended the view, if the service refused to continue.
        """
        return self._view.get(key)

    def for_each(self, callback: Callable[[str, T], None]) -> None:
        """Call ``callback(key, value)`` on this thread for every current key."""
        for key, value in self._thread.run(self._items()):
            callback(key, value)

    async def _items(self) -> list[tuple[str, T]]:
        return self._view.items()

    def for_each_and_listen(self, callback: Callable[[str, Any], None]) -> None:
        """Call ``callback`` on the client's thread for every current key and every new value.

        The value of a removed key is None, or b"" without a schema. The callback must not block.
        Its exceptions for new values are logged.
        """
        self._thread.run(self._listen(callback))

    async def _listen(self, callback: Callable[[str, Any], None]) -> None:
        self._view.for_each_and_listen(callback)

    def close(self) -> None:
        """Stop following the topic; closing twice has no effect."""
        if not self._closed and not self._thread.stopped:
            self._closed = True
            self._thread.run(self._view.close())

    def __len__(self) -> int:
        return len(self._view)

    def __contains__(self, key: object) -> bool:
        return key in self._view

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._view)
