"""A durable subscription's body: its brain behind a link from the partition."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from velaray.actors.dispatch.suspects import Suspects
from velaray.actors.machine import Reason, Refusal
from velaray.actors.sets.offset_sets import Range
from velaray.actors.subscription.machine import Create, SubscriptionMachine
from velaray.actors.subscription.undoing import decide_restore
from velaray.broker.history import Moment, NoHistory
from velaray.broker.journaled_actor import JournaledActor, WasDeleted
from velaray.broker.subscription.dispatcher import SubscriptionDispatcher
from velaray.broker.subscription.progress_exporter import Exporter
from velaray.broker.subscription.tracing import Trace
from velaray.broker.subscription.undoing import NothingMoved, Plan, plan_undo
from velaray.events.ids import ActorKey
from velaray.topology.actor_system import ActorSystem, Address
from velaray.topology.rpc import RemoteError, RpcConnection
from velaray.topology.transient import TRANSIENT

_UNDO_TRIES = 5


class SubscriptionActor(JournaledActor):
    """Serves one partition at a time: the newest activation, by the epoch it shows."""

    def __init__(self, key: ActorKey, fabric: ActorSystem) -> None:
        super().__init__(key, fabric, SubscriptionMachine())
        self._exporter: Exporter
        self._brain: SubscriptionDispatcher | None = None
        self._suspects: Suspects | None = None  # once there was a brain
        self._hand: RpcConnection | None = None
        self._hand_epoch = 0
        self._trace: Trace | None = None
        self._seeing: asyncio.Task[Any] | None = None
        self._ending = False

    async def start(self) -> Address:
        """Recover and listen; what was under way to the dead-letter topic goes on."""
        address = await super().start()
        activation = f"{self.key.subscription_incarnation}.{self.runtime.journal.epoch}"
        self._exporter = Exporter(activation, self._tell_progressed)
        self.runtime.on_applied = self._exporter.applied
        self._see_to_dead_letters()
        return address

    def _tell_progressed(self) -> None:
        if self._hand is not None:
            self._hand.notify("progressed", None)

    async def _export_part(
        self, cluster: str, token: list[Any] | None, known_from: int
    ) -> dict[str, Any]:
        in_vain = None if self._brain is None else self._brain.in_vain
        return await self._exporter.next(self.runtime, cluster, token, known_from, in_vain)

    def _see_to_dead_letters(self) -> None:
        seeing = self._seeing is not None and not self._seeing.done()
        if self.runtime.state.dead.intended and not seeing and not self._ending:
            self._seeing = self.spawn(self._find_a_hand())

    async def _find_a_hand(self) -> None:
        """Have the partition connect, as long as there are letters that nobody publishes."""
        hand = ActorKey.of_partition(self.key.topic_name, self.key.topic_incarnation)
        mine = {
            "name": self.key.subscription,
            "incarnation": self.key.subscription_incarnation,
        }
        backoff = self.fabric.backoff()
        while self._hand is None and self.runtime.state.dead.intended:
            with contextlib.suppress(*TRANSIENT):
                await self.fabric.call(hand, "resume_dead_letters", mine)
            await backoff.wait()

    async def ask_whether_it_exists(self) -> None:
        """Ask the partition, which has the names of its subscriptions.

        Raises `WasDeleted` with FENCED: whoever wants this actor is superseded.
        """
        hand = ActorKey.of_partition(self.key.topic_name, self.key.topic_incarnation)
        mine = {
            "name": self.key.subscription,
            "incarnation": self.key.subscription_incarnation,
        }
        try:
            await self.fabric.ask(hand, "has_subscription", mine)
        except RemoteError as error:
            if error.kind == Reason.NOT_FOUND:
                raise WasDeleted(Reason.FENCED, f"{self.key} was deleted") from error
            raise

    async def on_request(self, link: RpcConnection, method: str, args: Any) -> Any:
        """``open`` makes this link the hand's; other brain requests are the hand's only."""
        if method == "open":
            epoch, *rest = args
            self._take_hand(link, epoch)
            assert self._brain is not None
            return await self._brain.on_request("open", rest)
        if link is self._hand and self._brain is not None:
            if method == "plan_undo":
                return await self._preview_undo(*args)
            if method == "undo":
                return await self._undo(self._brain, *args)
            if method == "export":
                return await self._export_part(*args)
            answer = await self._brain.on_request(method, args)
            if method == "end_transaction" and not answer:
                # Nothing was written: a newer activation may have what this one doesn't know.
                await self.read_certain(lambda state: None)
            return answer
        return await self.call(method, args)

    async def _preview_undo(
        self, sequence: int | None, at_ms: int | None, gone: list[int]
    ) -> dict[str, Any] | None:
        """What undoing would change; None if nothing moved since. Raises `RemoteError` if the
        subscription would refuse it."""
        try:
            plan = await self._plan(Moment(sequence, at_ms))
        except NothingMoved:
            return None
        decision = decide_restore(plan.expected, plan.command(gone))
        if isinstance(decision.reply, Refusal):
            raise RemoteError(decision.reply.reason, decision.reply.message)
        return plan.described()

    async def _undo(
        self,
        brain: SubscriptionDispatcher,
        sequence: int | None,
        at_ms: int | None,
        gone: list[int],
        shared: bool,
    ) -> dict[str, Any]:
        """Back to a moment; tells what changes. Raises `RemoteError`, also if acknowledgements keep
        coming."""
        for _ in range(_UNDO_TRIES):
            try:
                plan = await self._plan(Moment(sequence, at_ms))
            except NothingMoved as error:
                raise RemoteError(Reason.NOT_FOUND, str(error)) from error
            try:
                await brain.restore(plan.command(gone, shared=shared))
                return plan.described()
            except RemoteError as error:
                if error.kind != Reason.CONFLICT:
                    raise
        raise RemoteError(Reason.BUSY, "acknowledgements keep coming; try again")

    async def _plan(self, moment: Moment) -> Plan:
        await self.runtime.read(lambda state: None)  # from now on what was decided is durable
        try:
            return await plan_undo(self.fabric.store, self.key, moment)
        except NoHistory as error:
            raise RemoteError(Reason.NOT_FOUND, str(error)) from error

    def _take_hand(self, link: RpcConnection, epoch: int) -> None:
        self._check_epoch(epoch)
        if self._hand is not None and self._hand is not link:
            self._hand.close()
        self._close_brain()
        self._hand = link
        self._exporter.speak_up()
        if self._trace is None:
            self._trace = Trace(self.runtime, self.fabric.clock_ms)
        if self._suspects is None:
            self._suspects = self._suspects_of_before()
        self._brain = SubscriptionDispatcher(
            self.runtime, self.key.partition, link.notify, self._trace, self._suspects
        )

    def _suspects_of_before(self) -> Suspects:
        """How deliveries ended before this activation isn't known: consumers may have been lost."""
        state = self.runtime.state
        return Suspects(
            (*part, run.times)
            for run in state.deliveries
            for part in state.cursor.unacked_ranges(run.first, run.end)
        )

    def _check_epoch(self, epoch: int) -> None:
        """A newer activation of the partition relies on what it was told: no older one may
        change that."""
        if epoch < self._hand_epoch:
            raise RemoteError(Reason.FENCED, "a newer activation of the partition is at work")
        self._hand_epoch = epoch

    def on_notice(self, link: RpcConnection, method: str, args: Any) -> None:
        """Notices are the hand's; those of a former hand are void."""
        if link is self._hand and self._brain is not None:
            ended = self._ending_deliveries(self._brain, method, args)
            self._brain.on_notice(method, args)
            self._exporter.touch(ended)

    def _ending_deliveries(
        self, brain: SubscriptionDispatcher, method: str, args: Any
    ) -> list[Range]:
        """What is delivered in vain by a notice, perhaps."""
        if method not in ("detach", "redeliver") or not self._exporter.attentive:
            return []
        if method == "redeliver" and args[1] is not None:
            return list(zip(args[1][::2], args[1][1::2], strict=True))
        return brain.held_by(args[0])

    def on_link_closed(self, link: RpcConnection) -> None:
        """Without its hand the brain has no consumers."""
        if link is self._hand:
            self._hand = None
            self._close_brain()
            self._see_to_dead_letters()

    def _close_brain(self) -> None:
        """Who held something has it no longer."""
        brain, self._brain = self._brain, None
        if brain is not None:
            held = brain.held()
            brain.close()
            self._exporter.touch(held)

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """``brain``: what the hand may ask, for a partition that isn't connected.

        A reset lets go of every consumer: so of those of another activation that is connected.
        """
        if method != "brain":
            return await super().call(method, args)
        self._check_epoch(args["epoch"])
        if args["method"] in ("reset", "undo") and self._hand is not None:
            self._hand.close()
            self.on_link_closed(self._hand)
        reply = await self.runtime.ask(Create(args["start"]))
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)
        brain = self._brain
        if brain is None:
            brain = SubscriptionDispatcher(
                self.runtime, self.key.partition, lambda method, args: None
            )
        if args["method"] == "plan_undo":
            return await self._preview_undo(*args["args"])
        if args["method"] == "undo":
            return await self._undo(brain, *args["args"])
        if args["method"] == "export":
            return await self._export_part(*args["args"])
        return await brain.on_request(args["method"], args["args"])

    async def stop(self) -> None:
        """As every body, once it's noted that no consumer failed."""
        self._ending = True
        if self._brain is not None:
            self._brain.retire()
        await super().stop()

    def abort(self) -> None:
        """As a crash would."""
        self._ending = True
        super().abort()

    def idle(self) -> bool:
        """Whether no partition and no caller is connected."""
        return not self.links.links
