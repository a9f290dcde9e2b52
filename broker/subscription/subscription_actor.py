"""The actor of a durable subscription: its dispatcher behind an RPC connection from the
partition."""

from __future__ import annotations

from functools import partial
from typing import Any

from velaray.actors.dispatch.suspects import Suspects
from velaray.actors.machine import Reason
from velaray.actors.sets.offset_sets import Range
from velaray.actors.subscription.machine import Create, SubscriptionMachine, SubscriptionState
from velaray.broker.actor_messages import ACTOR_REQUESTS
from velaray.broker.journaled_actor import JournaledActor, WasDeleted
from velaray.broker.partition.messages import HasSubscription, ResumeDeadLetters
from velaray.broker.subscription import messages as m
from velaray.broker.subscription.dead_letter_resumption import DeadLetterResumption
from velaray.broker.subscription.dispatch_state import accepted, pairs
from velaray.broker.subscription.dispatcher import SubscriptionDispatcher
from velaray.broker.subscription.progress_exporter import Exporter
from velaray.broker.subscription.tracing import Trace
from velaray.broker.subscription.undo_requests import UndoRequests
from velaray.events.ids import ActorKey
from velaray.topology.actor_system import ActorSystem, Address
from velaray.topology.messages import Encoded, Message, MessageError, Request, encode
from velaray.topology.rpc import RemoteError, RpcConnection
from velaray.topology.rpc_server import RpcServer


class SubscriptionActor(JournaledActor):
    """Serves one activation of its partition at a time: the newest one, by its epoch."""

    deleted = Reason.FENCED  # only a superseded partition uses a deleted subscription
    accepts = m.TO_SUBSCRIPTION

    def __init__(self, key: ActorKey, actor_system: ActorSystem) -> None:
        super().__init__(key, actor_system, SubscriptionMachine())
        self.rpc_server = RpcServer(self, key.text(), self.host.rpc)
        self._exporter: Exporter
        self._dispatcher: SubscriptionDispatcher | None = None
        self._suspects: Suspects | None = None  # once a partition was connected
        self._partition: RpcConnection | None = None
        self._partition_epoch = 0
        self._trace: Trace | None = None
        self._partition_key = ActorKey.of_partition(key.topic_name, key.topic_incarnation)
        resuming = ResumeDeadLetters(key.subscription, key.subscription_incarnation)
        resume = partial(actor_system.request, self._partition_key, resuming)
        self._dead_letters = DeadLetterResumption(self, resume, lambda: self._partition is not None)
        self._undoing = UndoRequests(self)

    async def start(self) -> Address:
        """Recover, listen, and resume the moves of dead letters."""
        address = await super().start()
        activation = f"{self.key.subscription_incarnation}.{self.runtime.journal.epoch}"
        self._exporter = Exporter(activation, self._tell_progressed)
        self.runtime.on_applied = self._exporter.applied
        self._dead_letters.begin()
        return address

    def _tell_progressed(self) -> None:
        if self._partition is not None:
            self._partition.tell(m.ProgressMade())

    async def _export_part(self, request: m.ExportProgress) -> dict[str, Any]:
        failed = None if self._dispatcher is None else self._dispatcher.failed_counts
        cluster, token = request.cluster, request.token
        return await self._exporter.next(self.runtime, cluster, token, request.known_from, failed)

    async def ask_whether_it_exists(self) -> None:
        """Ask the partition, which has the names of its subscriptions.

        Raises `WasDeleted` with FENCED: the caller was superseded.
        """
        question = HasSubscription(self.key.subscription, self.key.subscription_incarnation)
        try:
            await self.actor_system.ask(self._partition_key, question)
        except RemoteError as error:
            if error.kind == Reason.NOT_FOUND:
                raise WasDeleted(Reason.FENCED, f"{self.key} was deleted") from error
            raise

    # -- messages of the partition ---------------------------------------------------

    async def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> Any:
        """Answer a typed request. `OpenDispatcher` makes this connection the partition's; only that
        one may send other requests of a partition, except within `CallSubscription`."""
        if isinstance(request, ACTOR_REQUESTS):
            return await self.handle(request)
        if isinstance(request, m.CallSubscription):
            return Encoded(encode(await self._call(request)))
        if isinstance(request, m.OpenDispatcher):
            # To open it writes nothing, and a newer activation may have confirmed acknowledgements.
            # This comes first: notices of the opened dispatcher must follow the answer.
            await self.read_certain(lambda state: None)
            self._serve(rpc_connection, request.epoch)
        elif rpc_connection is not self._partition:
            text = f"only the connected partition may send {type(request).__name__}"
            raise RemoteError(Reason.UNAVAILABLE, text)
        assert self._dispatcher is not None
        answer = await self._answer(self._dispatcher, request)
        if isinstance(request, m.EndPendingAcks) and not answer:
            # Nothing was written, so a newer activation may know the transaction.
            await self.read_certain(lambda state: None)
        return answer

    async def _answer(self, dispatcher: SubscriptionDispatcher, request: Request[Any]) -> Any:
        match request:
            case m.PlanUndo():
                return await self._undoing.preview(request)
            case m.UndoMoves():
                return await self._undoing.undo(dispatcher, request)
            case m.ExportProgress():
                return await self._export_part(request)
        return await dispatcher.on_request(request)

    async def _call(self, call: m.CallSubscription) -> Any:
        """Answer a request of a partition that isn't connected.

        A move of the cursor drops all consumers, those of another activation as well.
        """
        self._check_epoch(call.epoch)
        try:
            request = call.unwrap()
        except MessageError as error:
            raise RemoteError(Reason.INVALID, str(error)) from error
        if isinstance(request, m.ResetCursor | m.UndoMoves) and self._partition is not None:
            self._partition.close()
            self.on_rpc_closed(self._partition)
        accepted(await self.runtime.ask(Create(call.start)))
        dispatcher = self._dispatcher
        if dispatcher is None:
            dispatcher = SubscriptionDispatcher(
                self.runtime, self.key.partition, _send_nowhere, self._trace
            )
        return await self._answer(dispatcher, request)

    def receive(self, rpc_connection: RpcConnection, notice: Message) -> None:
        """Handle a notice of the partition; those over a former partition's connection are
        ignored."""
        if rpc_connection is self._partition and self._dispatcher is not None:
            attentive = self._exporter.attentive
            failing = _failing_deliveries(self._dispatcher, notice) if attentive else []
            self._dispatcher.on_notice(notice)
            self._exporter.touch(failing)

    # -- the connection of the partition -----------------------------------------------

    def _serve(self, rpc_connection: RpcConnection, epoch: int) -> None:
        self._check_epoch(epoch)
        if self._partition is not None and self._partition is not rpc_connection:
            self._partition.close()
        self._close_dispatcher()
        self._partition = rpc_connection
        self._exporter.speak_up()
        if self._trace is None:
            self._trace = Trace(self.runtime, self.actor_system.clock_ms)
        self._dispatcher = SubscriptionDispatcher(
            self.runtime, self.key.partition, rpc_connection.tell, self._trace, self._all_suspects
        )

    async def _all_suspects(self) -> Suspects:
        """The suspects of this activation."""
        if self._suspects is None:
            before = await self.runtime.look(_suspects_of_before)
            self._suspects = self._suspects or before  # perhaps another connection's
        return self._suspects

    def _check_epoch(self, epoch: int) -> None:
        """Raise `RemoteError` (FENCED) if a newer activation of the partition was served."""
        if epoch < self._partition_epoch:
            raise RemoteError(Reason.FENCED, "a newer activation of the partition is connected")
        self._partition_epoch = epoch

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """End the dispatcher: without its partition the subscription has no consumers."""
        if rpc_connection is self._partition:
            self._partition = None
            self._close_dispatcher()
            self._dead_letters.begin()

    def _close_dispatcher(self) -> None:
        dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None:
            held = dispatcher.held()
            dispatcher.close()
            self._exporter.touch(held)

    async def stop(self) -> None:
        """Stop; deliveries in progress don't count as failed."""
        self._dead_letters.close()
        if self._dispatcher is not None:
            self._dispatcher.retire()
        await super().stop()

    def abort(self) -> None:
        """Stop as a crash would."""
        self._dead_letters.close()
        super().abort()

    def idle(self) -> bool:
        """Whether no partition and no caller is connected."""
        return not self.rpc_server.connections


def _failing_deliveries(dispatcher: SubscriptionDispatcher, notice: Message) -> list[Range]:
    """The deliveries that may fail because of a notice."""
    match notice:
        case m.Redeliver(ranges=ranges) if ranges is not None:
            return pairs(ranges)
        case m.Detach() | m.Redeliver():
            return dispatcher.held_by(notice.number)
    return []


def _suspects_of_before(state: SubscriptionState) -> Suspects:
    """Entries that were delivered before this activation; their consumers may have failed."""
    return Suspects(
        (*part, run.times)
        for run in state.deliveries
        for part in state.cursor.unacked_ranges(run.first, run.end)
    )


def _send_nowhere(notice: Message) -> None:
    """Ignore the notices of a dispatcher without consumers."""
