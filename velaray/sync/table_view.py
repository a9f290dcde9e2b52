"""The synchronous table view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from velaray.client.closing import Closing
from velaray.client.schema.base import T
from velaray.client.table_view import TableView as AioTableView
from velaray.sync.face import Face, blocking, direct, on_loop
from velaray.sync.loop import LoopThread


class TableView(Face[AioTableView[T]], Closing, Generic[T]):
    """A live map from key to newest value. Created by `velaray.Client.create_table_view`.

    A tombstone or an empty value removes its key. Messages without a key are ignored. Memory use is
    that of all keys and their newest values. A value that can't be decoded is logged, and the
    previous value stays. A new view holds everything that was published before its creation.
    """

    def __init__(self, thread: LoopThread, view: AioTableView[T]) -> None:
        super().__init__(thread, view)
        self._closed = False

    get = direct(AioTableView[T].get)

    def for_each(self, callback: Callable[[str, T], None]) -> None:
        """Call ``callback(key, value)`` on this thread for every current key."""
        for key, value in self.items():
            callback(key, value)

    items = on_loop(AioTableView[T].items)
    for_each_and_listen = on_loop(AioTableView.for_each_and_listen)
    _close = blocking(AioTableView.close)

    def close(self) -> None:
        """Stop following the topic; closing twice has no effect."""
        if not self._closed and not self._thread.stopped:
            self._closed = True
            self._close()

    def __len__(self) -> int:
        return len(self._inner)

    def __contains__(self, key: object) -> bool:
        return key in self._inner
