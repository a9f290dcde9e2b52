"""The newest value of every key of a topic, kept up to date in memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Generic

from velaray.client.closing import AsyncClosing
from velaray.client.core import Core
from velaray.client.exceptions import AlreadyClosed, UndecodableMessage, VelarayError
from velaray.client.interceptors import Harmless
from velaray.client.message import Message
from velaray.client.message_id import MessageId
from velaray.client.options import ReaderOptions, TableViewOptions
from velaray.client.reader import Reader
from velaray.client.schema.base import T, typed

logger = logging.getLogger("velaray")

Listener = Callable[[str, Any], None]


class TableView(AsyncClosing, Generic[T]):
    """A live map from key to newest value. Made by `velaray.aio.Client.create_table_view`.

    A tombstone or an empty value removes its key; messages without a key are ignored. The view uses
    memory for all keys and their newest values. An undecodable value is logged, and the former
    value stays. A new view contains everything that was published before.
    """

    def __init__(
        self, core: Core, options: TableViewOptions[Any], on_close: Callable[[TableView[Any]], None]
    ) -> None:
        reading = ReaderOptions(
            options.topic,
            MessageId.earliest,
            is_read_compacted=True,
            subscription_role_prefix=options.subscription_name,
            schema=options.schema,
        )
        self._core = core
        self._topic = options.topic
        self._reader: Reader[T] = Reader(core, reading, lambda _: None)
        self._values: dict[str, T] = {}
        self._nothing: Any = b"" if typed(options.schema) is None else None
        self._listeners: list[Listener] = []
        self._updates: asyncio.Task[None] | None = None
        self._error: VelarayError | None = None
        self._on_close = on_close

    async def start(self) -> None:
        """Read the existing messages, then follow the topic; called by the client."""
        await self._reader.start()
        while await self._reader.has_message_available():
            self._apply(await self._reader.read_next())
        self._updates = self._core.spawn(self._follow())

    async def _follow(self) -> None:
        try:
            while True:
                self._apply(await self._reader.read_next())
        except AlreadyClosed:
            return
        except VelarayError as error:
            self._error = error

    def _apply(self, message: Message[Any]) -> None:
        key = message.partition_key()
        if not key:
            return
        value = self._nothing
        if len(message) and not message.has_null_value():
            try:
                value = self._values[key] = message.value()
            except UndecodableMessage as error:
                logger.warning("a table view keeps the former value of %r: %s", key, error)
                return
        else:
            self._values.pop(key, None)
        for listener in self._listeners:
            with Harmless("a listener of a table view"):
                listener(key, value)

    def get(self, key: str) -> T | None:
        """Return the newest value of ``key``, None if there is none.

        Raises the service's error that ended the view, if there is one.
        """
        if self._error is not None:
            raise self._error
        return self._values.get(key)

    def items(self) -> list[tuple[str, T]]:
        """Return all keys and their newest values, as of now."""
        return list(self._values.items())

    def for_each(self, callback: Listener) -> None:
        """Call ``callback(key, value)`` for every current key."""
        for key, value in self.items():
            callback(key, value)

    def for_each_and_listen(self, callback: Listener) -> None:
        """Call ``callback`` as `for_each`, then for every new value.

        The value of a removed key is None, or b"" without a schema. Exceptions of the callback for
        new values are logged.
        """
        self.for_each(callback)
        self._listeners.append(callback)

    async def close(self) -> None:
        """Stop following; closing twice does nothing."""
        if self._updates is not None:
            self._updates.cancel()
        await self._reader.close()
        self._on_close(self)

    def stop(self) -> None:
        """Stop at once, without a message to the service."""
        if self._updates is not None:
            self._updates.cancel()
        self._reader.stop()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __repr__(self) -> str:
        return f"<TableView of {self._topic}, {len(self)} keys>"
