"""The connection of a channel to its dispatcher.

Acknowledgements of entries that a loss of power could remove (`velaray.journal.journal`, relaxed)
wait here until the log is synced: a cursor must never be ahead of the durable log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from velaray.broker.partition.channel.log import LogSync
from velaray.broker.subscription.messages import (
    AckEntries,
    AckEntriesBefore,
    AddPermits,
    LeaseReport,
)
from velaray.topology.messages import Message, ReplyT, Request
from velaray.topology.rpc import RpcConnectionClosed

HELD_NOTICES = 4096
"""The number of waiting notices at which the channel requests a sync of the log."""

_OVERTAKES = frozenset((AddPermits, LeaseReport))
"""Notices that may be sent while acknowledgements are held back."""


class DispatcherPort(Protocol):
    """The protocol of a channel's connection to its dispatcher."""

    closed: bool

    def tell(self, notice: Message) -> None:
        """Send a notice to the dispatcher."""
        ...

    async def ask(self, request: Request[ReplyT]) -> ReplyT:
        """Send a request to the dispatcher; returns its answer."""
        ...

    def close(self) -> None:
        """Close the connection: the channel doesn't need the dispatcher any more."""
        ...


class DispatcherLink:
    """Sends notices and requests in order, and holds back what isn't synced."""

    def __init__(self, log: LogSync) -> None:
        self.port: DispatcherPort | None = None
        self._log = log
        self._held: deque[tuple[int, Message]] = deque()  # (offset to be synced first, notice)
        self._holding_all = False  # hold everything, not only acknowledgements
        self._passing: list[asyncio.Future[None]] = []  # wait until held notices are sent

    @property
    def held(self) -> int:
        """The number of notices that wait for a sync."""
        return len(self._held)

    def tell(self, notice: Message) -> None:
        """Send a notice to the dispatcher, after those that are held."""
        if self._held and (self._holding_all or type(notice) not in _OVERTAKES):
            if not self._holding_all:
                self._holding_all = True
                self._log.ask_for_sync()
            self._held.append((0, notice))
        elif self.port is not None:
            self.port.tell(notice)

    def overtake(self, notice: Message) -> None:
        """Send a notice before those that are held."""
        if self.port is not None:
            self.port.tell(notice)

    async def ask(self, request: Request[ReplyT]) -> ReplyT:
        """Send a request to the dispatcher.

        Raises `RpcConnectionClosed`, `TimeoutError` and `RemoteError` as RPC connections do.
        """
        if self.port is None:
            raise RpcConnectionClosed("the subscription is restarting")
        return await self.port.ask(request)

    def may_pass(self, end: int) -> bool:
        """Whether an acknowledgement of offsets below ``end`` may be sent now."""
        return not self._held and end <= self._log.synced_offset

    def hold(self, notice: AckEntries | AckEntriesBefore, end: int) -> None:
        """Send an acknowledgement of offsets below ``end`` once they are synced.

        If the client expects a receipt, the log is synced at once; otherwise at its next time.
        """
        self._held.append((end, notice))
        if notice.request_id or len(self._held) >= HELD_NOTICES:
            self._log.ask_for_sync()

    def log_synced(self) -> None:
        """Send the held notices that may be sent by now, in order."""
        held, synced = self._held, self._log.synced_offset
        while held and held[0][0] <= synced:
            _, notice = held.popleft()
            self.overtake(notice)
        if held:
            if self._holding_all or self._passing:
                self._log.ask_for_sync()
            return
        self._holding_all = False
        passing, self._passing = self._passing, []
        for future in passing:
            if not future.done():
                future.set_result(None)

    async def passed(self) -> None:
        """Return when no notice is held. Raises `RpcConnectionClosed` if the channel closes
        meanwhile."""
        if not self._held:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._passing.append(future)
        self._log.ask_for_sync()
        await future

    def drop_held(self) -> None:
        """Drop the held notices, and end requests that wait for them."""
        self._held.clear()
        for future in self._passing:
            if not future.done():
                future.set_exception(RpcConnectionClosed("the subscription is restarting"))

    def close(self) -> None:
        """Disconnect the dispatcher."""
        if self.port is not None:
            self.port.close()
