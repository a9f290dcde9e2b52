"""A partition behind the fence: its tenant is moving to another cluster.

From the moment when the fence is durable, no publish gets a receipt here and nobody is delivered
anything but replicators; clients are sent away, and find out by looking up where to go on. What
they had acknowledged until then is in the subscriptions' cursors when `PartitionFence.put_up`
returns, and nothing that is acknowledged later is: so what is exported then is all there will be.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from velaray.actors.machine import Reason, Refusal
from velaray.actors.partition.migration_fence import FencePartition, UnfencePartition
from velaray.topology.rpc import RemoteError
from velaray.wire.replication import REPLICATOR_PREFIX

if TYPE_CHECKING:
    from velaray.broker.partition.partition_actor import PartitionActor
    from velaray.broker.partition.subscription_channel import SubscriptionChannel

ACKS_COME_S = 0.15
"""Clients that ask for no receipts collect acknowledgements for 0.1 s before they send them."""
QUIET_S = 5.0
"""So long nobody is delivered anything, if no fence comes."""
_CHANGES = (
    *("append", "expire", "import_progress", "resume_dead_letters", "seek", "set_replicated"),
    *("set_properties", "skip_to", "undo"),
)
"""Calls of a partition that its machine doesn't refuse by itself, and that change something."""


class PartitionFence:
    """The fence of one partition."""

    def __init__(self, partition: PartitionActor) -> None:
        self._partition = partition
        #: For which migration it is up; 0: it isn't.
        self.up = 0
        self._passing = 0
        self._passed = asyncio.Event()

    def check(self, subscription: str = "") -> None:
        """Raise `RemoteError` (UNAVAILABLE) if it is up, unless a replicator reads."""
        if self.up and not subscription.startswith(REPLICATOR_PREFIX):
            problem = f"{self._partition.topic} is moving to another cluster: look it up again"
            raise RemoteError(Reason.UNAVAILABLE, problem)

    @contextlib.contextmanager
    def passing(self, method: str) -> Iterator[None]:
        """Around a call: one that changes something is refused behind the fence, and waited for
        before."""
        if method not in _CHANGES:
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
        """Deliver nothing more, as a fence is about to be put up; return when what clients had
        acknowledged has had time to come. If no fence follows, all goes on after a while."""
        channels = [each for each in self._clients_channels() if each.consumers]
        if self.up or not channels:
            return
        for channel in channels:
            channel.quiet = True
        asyncio.get_running_loop().call_later(QUIET_S, self._go_on, channels)
        await asyncio.sleep(ACKS_COME_S)

    def _go_on(self, channels: Sequence[SubscriptionChannel]) -> None:
        for channel in channels:
            channel.quiet = False
            for consumer in list(channel.consumers.values()):
                channel.deliver(consumer)

    def _clients_channels(self) -> list[SubscriptionChannel]:
        return [
            channel
            for channel in self._partition.channels.values()
            if not channel.name.startswith(REPLICATOR_PREFIX)
        ]

    async def put_up(self, migration: int) -> None:
        """Let nothing through any more; return when all that had come is settled, and durable.

        Again, it changes nothing. Raises `RemoteError` (CONFLICT) if the migration is over, and
        what calls raise: then it may be up.
        """
        partition = self._partition
        await self._tell(FencePartition(migration), self._close)
        while self._passing:
            self._passed.clear()
            await self._passed.wait()
        names = [channel.name for channel in self._clients_channels()]
        await asyncio.gather(*(partition.empty_channel(name) for name in names))
        await partition.sync()

    async def take_down(self, migration: int) -> None:
        """That migration came to nothing: go on as if it had never been. Raises as `put_up`."""
        await self._tell(UnfencePartition(migration), self._open)

    async def _tell(self, command: Any, settle: Callable[[int], None]) -> None:
        """Have the fence be as the command says, in order with all else that is durable."""
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
        """It is durable: send clients away before any later answer reaches them."""
        if self.up == migration:
            return
        self.up = migration
        partition = self._partition
        for session in list(partition.sessions):
            session.close_producers()
        for channel in self._clients_channels():
            channel.resetting = True  # what comes from now on acknowledges nothing


async def be_quiet(fence: PartitionFence, args: dict[str, Any]) -> None:
    """A fence is about to be put up; see `PartitionFence.be_quiet`."""
    await fence.be_quiet()


async def put_up(fence: PartitionFence, args: dict[str, Any]) -> None:
    """Put up the fence for a migration of the tenant; see `PartitionFence.put_up`."""
    await fence.put_up(args["migration"])


async def take_down(fence: PartitionFence, args: dict[str, Any]) -> None:
    """Take it down: that migration came to nothing."""
    await fence.take_down(args["migration"])
