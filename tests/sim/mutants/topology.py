"""Bugs between the machines: partitions and dispatchers, connections, sessions of clients."""

from __future__ import annotations

from typing import Any

from tests.sim.mutants.mutant import Mutant, do_nothing, do_nothing_async
from velaray.broker.partition.channel.consumer import Grant
from velaray.broker.partition.channel_opening import _DispatcherConnection
from velaray.broker.partition.dead_letters import DeadLetterMover
from velaray.broker.partition.delayed_delivery import DelayedDeliveryTracker
from velaray.broker.partition.entries import CachedEntry, EntryCache
from velaray.broker.partition.publishing import Publishing
from velaray.broker.partition.session import producer
from velaray.broker.partition.session.producers import ProducerHandlers
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.subscription.acknowledgements import Acknowledgements
from velaray.broker.subscription.messages import AckReceipt
from velaray.topology.rpc import RpcConnection


def _confirm_acks_early(original: Any) -> Any:
    def acknowledge(self: Acknowledgements, number: int, request_id: int, command: Any) -> None:
        if request_id:
            self._state.send(AckReceipt(number, request_id, None))
        original(self, number, 0, command)

    return acknowledge


def _send_the_next_entry(original: Any) -> Any:
    def get(self: EntryCache, offset: int) -> CachedEntry | None:
        found: CachedEntry | None = original(self, offset)
        return (original(self, offset + 1) or found) if offset % 7 == 3 else found

    return get


def _count_batches_as_one(original: Any) -> Any:
    def publish(self: Publishing, producing: Any, send: Any, entry: bytes) -> None:
        original(self, producing, send._replace(num_messages=1), entry)

    return publish


def _confirm_the_entry_before(original: Any) -> Any:
    def receipt(producer: int, at: int, ledger: int, entry: int, highest: Any = None) -> bytes:
        return original(producer, at, ledger, entry - 1 if entry > 0 else entry, highest)

    return receipt


def _deliver_to_the_wrong_consumer(original: Any) -> Any:
    def grant(self: SubscriptionChannel, number: int, grant: Grant) -> None:
        others = [other for other in self.consumers if other != number]
        original(self, others[0] if others and grant.first % 5 == 2 else number, grant)

    return grant


def _answer_the_newest_request(original: Any) -> Any:
    def on_response(self: RpcConnection, request_id: int, error: str | None, value: Any) -> None:
        original(self, next(reversed(self._requests), request_id), error, value)

    return on_response


def _deliver_unsynced_entries(original: Any) -> Any:
    def publish(self: Publishing, producing: Any, send: Any, entry: bytes) -> None:
        runtime, cache = self._partition.runtime, self._log.cache
        before = runtime.state.end_offset
        original(self, producing, send, entry)
        if before < runtime.state.end_offset and before == cache.end:
            cache.append(CachedEntry(entry, send.num_messages, ""))
            self._more_readable()

    return publish


def _cache_once(original: Any) -> Any:
    def append(self: EntryCache, entry: CachedEntry) -> None:
        newest = self._tail.entries[-1] if len(self._tail) else None
        if newest is None or newest.data is not entry.data:
            original(self, entry)

    return append


def _forget_parts_that_are_acknowledged(original: Any) -> Any:
    def grant(self: SubscriptionChannel, number: int, grant: Grant) -> None:
        grant.ack_set = []
        original(self, number, grant)

    return grant


def _publish_anew(original: Any) -> Any:
    async def publish(self: DeadLetterMover, at: Any, entry: Any, number: int, *rest: Any) -> None:
        anew = round(self._partition.actor_system.clock_ms()) + number
        await original(self, at, entry, anew, *rest)

    return publish


def _begin_with_none(original: Any) -> Any:
    def begin(self: DelayedDeliveryTracker, clock_ms: Any, on_due: Any, entries: Any = ()) -> None:
        original(self, clock_ms, on_due)

    return begin


def _report_no_due_entries(original: Any) -> Any:
    def fire(self: DelayedDeliveryTracker) -> None:
        on_due, self._on_due = self._on_due, lambda entries, until_ms: None
        original(self)
        self._on_due = on_due

    return fire


def _report_the_newest_stored_id(original: Any) -> Any:
    def reported(self: ProducerHandlers, connected: Any, last: int) -> int:
        return last

    return reported


MUTANTS: dict[str, Mutant] = {
    "report-the-newest-stored-id": Mutant(
        "a producer that reconnects without a receipt restarts its ids below those it holds",
        ((ProducerHandlers, "_reported_id", _report_the_newest_stored_id),),
        within=300,
    ),
    "ignore-delays": Mutant(
        "delayed entries are delivered at once",
        ((DelayedDeliveryTracker, "add", do_nothing),),
        within=100,
    ),
    "report-no-due-entries": Mutant(
        "a subscription gets no notice of due entries",
        ((DelayedDeliveryTracker, "_fire", _report_no_due_entries),),
        within=100,
    ),
    "move-without-publishing": Mutant(
        "a dead letter is acknowledged and published nowhere",
        ((DeadLetterMover, "_publish", do_nothing_async),),
        within=200,
    ),
    "renumber-repeated-dead-letters": Mutant(
        "a dead letter that is published again gets another number",
        ((DeadLetterMover, "_publish", _publish_anew),),
        within=500,
    ),
    "ignore-delays-after-a-restart": Mutant(
        "a recovered partition delivers delayed entries at once",
        ((DelayedDeliveryTracker, "__init__", _begin_with_none),),
        within=300,
    ),
    "confirm-acks-early": Mutant(
        "an acknowledgement's receipt leaves before it is durable",
        ((Acknowledgements, "_acknowledge", _confirm_acks_early),),
        within=100,
    ),
    "deliver-unsynced-entries": Mutant(
        "an entry is delivered before it is synced",
        (
            (Publishing, "publish", _deliver_unsynced_entries),
            (EntryCache, "append", _cache_once),
        ),
        within=300,
    ),
    "send-the-next-entry": Mutant(
        "an entry's bytes are those of the next one",
        ((EntryCache, "get", _send_the_next_entry),),
        within=20,
    ),
    "count-batches-as-one": Mutant(
        "a batch counts as one message",
        ((Publishing, "publish", _count_batches_as_one),),
        within=20,
    ),
    "confirm-the-entry-before": Mutant(
        "a receipt names the entry before",
        ((producer, "send_receipt", _confirm_the_entry_before),),
        within=20,
    ),
    "deliver-to-the-wrong-consumer": Mutant(
        "the partition writes to another consumer than the dispatcher chose",
        ((SubscriptionChannel, "_grant", _deliver_to_the_wrong_consumer),),
        within=50,
    ),
    "send-no-ack-set": Mutant(
        "a partly acknowledged batch is delivered without its ack set",
        ((SubscriptionChannel, "_grant", _forget_parts_that_are_acknowledged),),
        within=100,
    ),
    "keep-consumers-without-a-dispatcher": Mutant(
        "a partition keeps its consumers when the dispatcher is lost",
        ((_DispatcherConnection, "on_rpc_closed", do_nothing),),
        within=20,
    ),
    "answer-the-newest-request": Mutant(
        "an RPC answer goes to the newest request",
        ((RpcConnection, "_on_response", _answer_the_newest_request),),
        within=100,
    ),
}
