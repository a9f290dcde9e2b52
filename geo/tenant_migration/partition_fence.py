"""The fence of a partition whose tenant migrates to another cluster.

Once the fence is durable, the partition confirms no publishes and delivers only to replicators.
Clients are disconnected and find the new home by a look-up. When `PartitionFence.put_up` returns,
the cursors contain every acknowledgement from before the fence, and later ones are refused. So an
export after that is final.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from velaray.actors.machine import Reason, Refusal
from velaray.actors.partition.migration_fence import FencePartition, UnfencePartition
from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.broker.partition import messages as m
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.geo.replication.messages import ImportProgress
from velaray.topology.messages import Message
from velaray.topology.rpc import RemoteError
from velaray.wire.replication import REPLICATOR_PREFIX

ACKS_COME_S = 0.15
"""Wait for acknowledgements: clients that request no receipts collect them for 0.1 s."""
QUIET_S = 5.0
"""How long delivery pauses if no fence follows."""
_CHANGES: frozenset[type[Message]] = frozenset(
    (
        *(m.Append, m.Expire, m.ResumeDeadLetters, m.Seek, m.SetReplicated, m.SetProperties),
        *(m.SkipTo, m.Undo, ImportProgress),
    )
)
"""Requests that change a partition and that its machine doesn't refuse by itself."""


class Clients(Protocol):
    """What the fence needs of the partition's clients."""

    def close_producers(self) -> None:
        """Close all producers."""


class Subscriptions(Protocol):
    """What the fence needs of the table of subscriptions."""

    channels: dict[str, SubscriptionChannel]

    async def empty_channel(self, name: str) -> None:
        """Close a channel and its consumers, who reconnect."""


class Log(Protocol):
    """What the fence needs of the partition's log."""

    async def sync(self) -> None:
        """Return when all present entries survive a loss of power."""


class Partition(Protocol):
    """What the fence needs of the partition."""

    topic: str
    runtime: Runtime[PartitionState]

    @property
    def clients(self) -> Clients:
        """The clients."""
        ...

    @property
    def log(self) -> Log:
        """The log."""
        ...

    @property
    def subscriptions(self) -> Subscriptions:
        """The table of subscriptions."""
        ...


class PartitionFence:
    """The fence of one partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        #: The migration whose fence is up; 0 for none.
        self.up = 0
        self._passing = 0
        self._passed = asyncio.Event()

    def check(self, subscription: str = "") -> None:
        """Raise `RemoteError` (UNAVAILABLE) if it is up, unless a replicator reads."""
        if self.up and not subscription.startswith(REPLICATOR_PREFIX):
            problem = f"{self._partition.topic} is moving to another cluster: look it up again"
            raise RemoteError(Reason.UNAVAILABLE, problem)

    @contextlib.contextmanager
    def passing(self, request: type[Message]) -> Iterator[None]:
        """Guard a request: while the fence is up, one that changes something is refused; `put_up`
        waits for running ones."""
        if request not in _CHANGES:
            yield
            return
        self.check()
        self._passing += 1
        try:
            yield
        finally:
            self._passing -= 1
            self._passed.set()

    async def be_quiet(self) -> None:
        """Pause delivery before a fence, and wait for acknowledgements in transit. Without a fence
        delivery resumes after a while."""
        channels = [each for each in self._clients_channels() if each.consumers]
        if self.up or not channels:
            return
        for channel in channels:
            channel.delivery.quiet = True
        asyncio.get_running_loop().call_later(QUIET_S, self._go_on, channels)
        await asyncio.sleep(ACKS_COME_S)

    def _go_on(self, channels: Sequence[SubscriptionChannel]) -> None:
        for channel in channels:
            channel.delivery.quiet = False
            for consumer in list(channel.consumers.values()):
                channel.delivery.deliver(consumer)

    def _clients_channels(self) -> list[SubscriptionChannel]:
        return [
            channel
            for channel in self._partition.subscriptions.channels.values()
            if not channel.name.startswith(REPLICATOR_PREFIX)
        ]

    async def put_up(self, migration: int) -> None:
        """Put up the fence, and wait until everything before it is durable.

        Repeating it changes nothing. Raises `RemoteError` (CONFLICT) if the migration is over, and
        what calls raise: then the fence may be up.
        """
        partition = self._partition
        await self._tell(FencePartition(migration), self._close)
        while self._passing:
            self._passed.clear()
            await self._passed.wait()
        names = [channel.name for channel in self._clients_channels()]
        await asyncio.gather(*(partition.subscriptions.empty_channel(name) for name in names))
        await partition.log.sync()

    async def take_down(self, migration: int) -> None:
        """Take the fence down after a rollback. Raises as `put_up`."""
        await self._tell(UnfencePartition(migration), self._open)

    async def _tell(self, command: Any, settle: Callable[[int], None]) -> None:
        """Put the fence up or down, in the order of the journal."""
        told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def release(reply: Any, effects: Any) -> None:
            if not isinstance(reply, Refusal):
                settle(reply.migration)
            if not told.done():
                told.set_result(reply)

        self._partition.runtime.submit(command, release)
        reply = await told
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)

    def _open(self, migration: int) -> None:
        self.up = migration

    def _close(self, migration: int) -> None:
        """Disconnect clients once the fence is durable, before any later answer."""
        if self.up == migration:
            return
        self.up = migration
        partition = self._partition
        partition.clients.close_producers()
        for channel in self._clients_channels():
            channel.resetting = True  # later acknowledgements are refused
