"""What can be asked of a topic partition besides messages: statistics and administration.

Every method takes the partition and a dict of arguments; all are idempotent or say that the
thing is not there. Over Ray: ``handle.call.remote("stats")``.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from velaray.actors.machine import Reason, Refusal
from velaray.actors.partition.ledger_table import NoSuchEntryError
from velaray.actors.partition.machine import (
    DeleteSubscription,
    StartAt,
    Terminate,
)
from velaray.actors.partition.producer_transfer import AdoptProducers, plain_rows, read_rows
from velaray.actors.partition.state import PartitionState, Subscription
from velaray.actors.partition.subscription_properties import SetProperty
from velaray.broker.partition import remote_ids, transaction_view
from velaray.broker.partition.dead_letters import append
from velaray.broker.partition.partition_clients import producer_stats, with_clients
from velaray.broker.partition.partition_reads import METHODS as READS
from velaray.broker.partition.partition_reads import described_entry
from velaray.broker.partition.subscription_view import describe_subscription
from velaray.broker.subscription.messages import (
    FindUnacked,
    GetStats,
    GetUnacked,
    LocateEntry,
    SkipTo,
)
from velaray.events.ids import Position, TransactionId
from velaray.topology.rpc import RemoteError
from velaray.wire.messages import split_entry
from velaray.wire.replication import REPLICATED_SUBSCRIPTION, REPLICATOR_PREFIX

if TYPE_CHECKING:
    from velaray.broker.partition.partition_actor import PartitionActor

Method = Callable[["PartitionActor", dict[str, Any]], Awaitable[Any]]


async def _subscription(partition: PartitionActor, name: str) -> Subscription:
    found = await partition.runtime.read(lambda state: state.subscriptions.get(name))
    if found is None:
        raise RemoteError(Reason.NOT_FOUND, f"{partition.topic} has no subscription {name!r}")
    return found


def _id(partition: PartitionActor, position: Position) -> list[int]:
    return [position.ledger_id, position.entry_id, partition.partition_index]


async def _cursor_stats(partition: PartitionActor, subscription: Subscription) -> dict[str, Any]:
    name, end = subscription.ref.name, partition.end_offset
    stats = await partition.ask_subscription(name, GetStats(end))
    mark = partition.runtime.state.table.position_before(stats["acked_before"])
    return {
        **with_clients(partition, name, stats),
        "backlog_bytes": partition.maintenance.backlog.bytes_from(stats["acked_before"]),
        "mark_delete": _id(partition, mark),
        "properties": subscription.properties,
        "durable": True,
    }


def _log_stats(state: PartitionState, end_offset: int) -> dict[str, Any]:
    return {
        "entries": sum(run.entries for run in state.table.runs(0, end_offset)),
        "first_offset": state.first_offset,
        "first_position": list(_first_position(state)),
        "trimmed": dict(state.trimmed),
        "end_offset": end_offset,
        "terminated": state.terminated,
        "topic_epoch": state.topic_epoch,
        "ongoing": len(state.transactions.ongoing),
        "ledgers": [
            {"ledger_id": run.ledger_id, "entries": run.entries}
            for run in state.table.runs(state.first_offset, end_offset)
        ],
    }


def _first_position(state: PartitionState) -> Position:
    """Where the log begins; where its next entry will be if it's empty."""
    if state.first_offset < state.end_offset:
        return state.table.position_of(state.first_offset)
    return state.table.next_position() if state.table.is_open else Position(-1, -1)


async def _backlog_stats(partition: PartitionActor, marks: list[int]) -> dict[str, Any]:
    """Of the slowest durable subscription, and what is done about it."""
    maintenance, slowest = partition.maintenance, min(marks, default=partition.end_offset)
    return {
        "retained_bytes": maintenance.backlog.bytes_from(0),
        "backlog_bytes": maintenance.backlog.bytes_from(slowest),
        "oldest_backlog_ms": await maintenance.backlog.age_ms(slowest),
        "held_back": None if maintenance.held_back is None else str(maintenance.held_back),
        "policies": dict(partition.policies.raw),
    }


async def stats(partition: PartitionActor, args: dict[str, Any]) -> dict[str, Any]:
    """Counters of the log, its producers and its subscriptions."""
    end_offset = partition.end_offset
    log = await partition.runtime.read(lambda state: _log_stats(state, end_offset))
    durable = await partition.runtime.read(lambda state: sorted(state.subscriptions.items()))
    subscriptions = {name: await _cursor_stats(partition, found) for name, found in durable}
    marks = [found["acked_before"] for found in subscriptions.values()]
    published, now_ms = partition.meter.published, partition.clock_ms()
    for name, channel in list(partition.channels.items()):
        if not channel.durable:
            stats = await channel.ask(GetStats(partition.end_offset))
            subscriptions[name] = {**with_clients(partition, name, stats), "durable": False}
    return {
        "topic": partition.topic,
        **log,
        **await _backlog_stats(partition, marks),
        "producers": [
            producer_stats(producer, now_ms)
            for session in partition.sessions
            for producer in session.producers()
        ],
        **published.speed(now_ms).told("in"),
        "messages_in": published.messages,
        "bytes_in": published.bytes,
        "published_ms": published.last_ms,
        "deduplicate": partition.policies.deduplicate,
        "subscriptions": subscriptions,
        "replication": await partition.geo.described(),
        "committed": partition.meter.committed,
        "aborted": partition.meter.aborted,
        "failed_reads": partition.meter.failed_reads,
        "unreadable": {
            name: found
            for name, channel in partition.channels.items()
            if (found := channel.unreadable.described())
        },
        "cached_bytes": partition.cache.bytes_held,
        "compaction": await partition.compactor.stats(),
        "runtime": asdict(partition.runtime.stats),
    }


async def individually_acked(
    partition: PartitionActor, args: dict[str, Any]
) -> dict[str, list[tuple[int, int, int]]]:
    """What is acknowledged beyond each durable subscription's mark-delete: runs of whole entries,
    as (ledger, first, last), in one piece as long as they are in one ledger."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    for name in await partition.runtime.read(lambda state: sorted(state.subscriptions)):
        end = partition.end_offset
        stats = await partition.ask_subscription(name, GetStats(end))
        if not stats["holes"]:
            found[name] = []
            continue
        mark = stats["acked_before"]
        unacked = await partition.ask_subscription(name, GetUnacked(mark, end, end))
        acked = itertools.pairwise([mark, *unacked, end])
        table = partition.runtime.state.table
        found[name] = [
            (run.ledger_id, run.first_entry, run.first_entry + run.entries - 1)
            for first, behind in itertools.islice(acked, 0, None, 2)
            for run in table.runs(first, behind)
        ]
    return found


async def subscriptions(partition: PartitionActor, args: dict[str, Any]) -> list[str]:
    """The names of the durable subscriptions."""
    return await partition.runtime.read(lambda state: sorted(state.subscriptions))


async def subscription_properties(
    partition: PartitionActor, args: dict[str, Any]
) -> dict[str, dict[str, str]]:
    """The properties of the durable subscriptions, by name; no subscription is activated."""
    return await partition.runtime.read(
        lambda state: {
            name: dict(found.properties) for name, found in sorted(state.subscriptions.items())
        }
    )


async def subscription(partition: PartitionActor, args: dict[str, Any]) -> dict[str, Any]:
    """Which incarnation of a durable subscription there is, and since which offset."""
    ref = (await _subscription(partition, args["name"])).ref
    return {"incarnation": ref.incarnation, "start_offset": ref.start_offset}


async def create_subscription(partition: PartitionActor, args: dict[str, Any]) -> None:
    """Create a durable subscription at ``position``, or "earliest" or "latest"."""
    at = args.get("position", "latest")
    start: StartAt | int
    if isinstance(at, str):
        start = StartAt(at)
    else:
        start = remote_ids.at_or_after(partition, Position(at[0], at[1]))
    await partition.create_subscription(args["name"], start, args.get("properties", {}))


async def delete_subscription(partition: PartitionActor, args: dict[str, Any]) -> None:
    """Delete a durable subscription; refused while consumers are connected unless ``force``."""
    name = args["name"]
    _check_no_replicator(name, "deleted")
    await _subscription(partition, name)
    channel = partition.channels.get(name)
    if channel is not None and channel.consumers and not args.get("force"):
        raise RemoteError(Reason.BUSY, f"subscription {name!r} has connected consumers")
    await partition.delete_subscription(DeleteSubscription(name))


async def set_replicated(partition: PartitionActor, args: dict[str, Any]) -> None:
    """Whether what a subscription has is to go to other clusters."""
    _check_no_replicator(args["name"], "replicated")
    await partition.set_replicated(args["name"], replicated=args["replicated"])


async def set_properties(partition: PartitionActor, args: dict[str, Any]) -> None:
    """A subscription has these ``properties`` from now on, and no others.

    Whether it is replicated stays as it is, although that is kept as a property.
    """
    name, wanted = args["name"], args["properties"]
    _check_no_replicator(name, "changed")
    known = (await _subscription(partition, name)).properties
    for key in sorted({*known, *wanted} - {REPLICATED_SUBSCRIPTION}):
        reply = await partition.runtime.ask(SetProperty(name, key, wanted.get(key)))
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)


def _check_no_replicator(name: str, what: str) -> None:
    if name.startswith(REPLICATOR_PREFIX):
        problem = (
            f"{name!r} is a replicator: it can't be {what}; take its cluster out of the policy"
        )
        raise RemoteError(Reason.NOT_ALLOWED, f"{problem} 'replication'")


async def _reset(partition: PartitionActor, name: str, offset: int, reason: str) -> None:
    _check_no_replicator(name, "moved")
    await _subscription(partition, name)
    await partition.reset_subscription(name, offset, reason)


async def seek(partition: PartitionActor, args: dict[str, Any]) -> list[int]:
    """Move a subscription to ``position`` or to publish time ``time_ms``; returns where to."""
    if "time_ms" in args:
        offset = await partition.offset_at_time(args["time_ms"])
    else:
        ledger_id, entry_id = args["position"][:2]
        offset = remote_ids.at_or_after(partition, Position(ledger_id, entry_id))
    await _reset(partition, args["name"], offset, "seek by an administrator")
    return _id(partition, partition.runtime.state.table.position_before(offset))


async def find_unacked(partition: PartitionActor, args: dict[str, Any]) -> int | None:
    """The offset of a subscription's ``number``-th (from 1) un-acknowledged entry, or None."""
    await _subscription(partition, args["name"])
    wanted = FindUnacked(args["number"], partition.end_offset)
    return await partition.ask_subscription(args["name"], wanted)


async def message_status(partition: PartitionActor, args: dict[str, Any]) -> dict[str, Any]:
    """Where the entry at ``position`` is in a subscription; what it still has to write about
    deliveries is durable then.

    Raises `RemoteError` (NOT_FOUND) if there is no such entry.
    """
    await _subscription(partition, args["name"])
    position = Position(*args["position"])
    try:
        offset = partition.runtime.state.table.offset_of(position)
    except NoSuchEntryError as error:
        raise RemoteError(Reason.NOT_FOUND, str(error)) from error
    found = await partition.ask_subscription(args["name"], LocateEntry(offset))
    return transaction_view.unsettled(partition, offset) or found


async def skip_to(partition: PartitionActor, args: dict[str, Any]) -> None:
    """Acknowledge all before ``offset`` or ``position`` (without: all there is), for good."""
    await _subscription(partition, args["name"])
    end = partition.end_offset
    if "position" in args:
        offset = remote_ids.at_or_after(partition, Position(*args["position"]))
    else:
        offset = min(args.get("offset", end), end)
    await partition.sync()
    await partition.ask_subscription(args["name"], SkipTo(end, offset))
    partition.maintenance.touched(args["name"])


async def plan_undo(partition: PartitionActor, args: dict[str, Any]) -> dict[str, Any] | None:
    """What undoing would change, back to after event ``sequence``, to time ``at_ms`` or, without
    either, to before the last move; None if nothing moved since."""
    name = args["name"]
    await _subscription(partition, name)
    plan = await partition.plan_undo(name, [args.get("sequence"), args.get("at_ms")])
    return None if plan is None else {"topic": partition.topic, **plan}


async def undo(partition: PartitionActor, args: dict[str, Any]) -> dict[str, Any]:
    """Undo moves of a subscription's cursor, back to after event ``sequence``.

    (An undoing is a move itself: repeated without an event, it would undo itself.)
    """
    name = args["name"]
    await _subscription(partition, name)
    found = await partition.undo(name, [args["sequence"], None])
    partition.maintenance.touched(name)
    return {"topic": partition.topic, **found}


async def expire(partition: PartitionActor, args: dict[str, Any]) -> None:
    """Have a subscription's messages that are older than ``age_ms`` expire now."""
    await partition.maintenance.expire(args["name"], args["age_ms"])


async def terminate(partition: PartitionActor, args: dict[str, Any]) -> list[int]:
    """Take no more messages; returns the last message id. Doing it again changes nothing."""
    reply = await partition.runtime.ask(Terminate())
    if isinstance(reply, Refusal):
        raise RemoteError(reply.reason, reply.message)
    partition.end_topic(reply.end_offset)
    return _id(partition, reply.last_position)


async def compact(partition: PartitionActor, args: dict[str, Any]) -> None:
    """Begin to compact; refused CONFLICT while a compaction runs."""
    partition.compactor.trigger()


async def compaction_status(partition: PartitionActor, args: dict[str, Any]) -> dict[str, str]:
    """How the last compaction went: NOT_RUN, RUNNING, SUCCESS or ERROR, and its error."""
    return partition.compactor.described()


async def last_message_id(partition: PartitionActor, args: dict[str, Any]) -> list[int]:
    """The last entry's id; entry id -1 if there is none."""
    table = partition.runtime.state.table
    return _id(partition, table.position_before(partition.end_offset))


async def peek(partition: PartitionActor, args: dict[str, Any]) -> dict[str, Any] | None:
    """The ``number``-th (from 1) un-acknowledged entry of a subscription, or None."""
    offset = await find_unacked(partition, args)
    if offset is None:
        return None
    return await described_entry(partition, offset)


async def unacked_entries(partition: PartitionActor, args: dict[str, Any]) -> dict[str, Any]:
    """The first ``most`` entries from offset ``first`` on that a subscription hasn't acknowledged.

    With ``next``, where to go on; None at the end. Delayed and delivered ones are among them.
    """
    name, first, most = args["name"], args["first"], args["most"]
    await _subscription(partition, name)
    end = partition.end_offset
    flat = await partition.ask_subscription(name, GetUnacked(first, most, end))
    ranges = map(range, flat[::2], flat[1::2])
    offsets = [offset for each in ranges for offset in each]
    entries = []
    for offset in offsets:
        with contextlib.suppress(NoSuchEntryError):  # it was acknowledged meanwhile, and trimmed
            metadata, payload = split_entry((await partition.entry(offset)).data)
            found = _id(partition, partition.position_of(offset))
            entries.append([found, metadata.SerializeToString(), bytes(payload)])
    return {"entries": entries, "next": offsets[-1] + 1 if len(offsets) >= most else None}


async def has_subscription(partition: PartitionActor, args: dict[str, Any]) -> None:
    """Refused NOT_FOUND if there is no subscription of this name and incarnation: it was deleted.

    Never answered by a superseded activation.
    """
    found = await partition.read_certain(lambda state: state.subscriptions.get(args["name"]))
    if found is None or found.ref.incarnation != args["incarnation"]:
        raise RemoteError(
            Reason.NOT_FOUND, f"subscription {args['name']!r} of {partition.topic} was deleted"
        )


async def resume_dead_letters(partition: PartitionActor, args: dict[str, Any]) -> None:
    """A subscription has dead letters under way, and nobody who publishes them."""
    await partition.resume_dead_letters(args["name"], args["incarnation"])


async def end_transaction(partition: PartitionActor, args: dict[str, Any]) -> list[str]:
    """A coordinator's verdict, for this partition or one of its subscriptions; returns the
    clusters that are to know its participants."""
    transaction = TransactionId(args["coordinator"], args["sequence"])
    verdict = {"commit": args["commit"], "alone": args["alone"]}
    return list(await partition.end_transaction(transaction, args["subscription"], **verdict))


async def newest_origins(partition: PartitionActor, args: dict[str, Any]) -> dict[str, list[int]]:
    """The newest position that came of each cluster which replicates to here, durably."""
    return await partition.runtime.read(
        lambda state: {
            cluster: list(origin.last) for cluster, origin in state.origins.by_cluster.items()
        }
    )


async def export_producers(partition: PartitionActor, args: dict[str, Any]) -> list[Any]:
    """What is known of every producer, for a partition of another cluster to adopt."""
    return await partition.runtime.read(plain_rows)


async def adopt_producers(partition: PartitionActor, args: dict[str, Any]) -> int:
    """Know of producers what ``rows`` of `export_producers` say, or (``origin``) what the
    replicated entries of a cluster do; returns of how many that is more than before.

    Again it changes nothing, and nothing that is known is lowered.
    """
    try:
        rows = read_rows(args.get("rows", ()))
    except (TypeError, ValueError) as error:
        raise RemoteError(Reason.INVALID, f"rows of producers: {error}") from error
    reply = await partition.runtime.ask(AdoptProducers(rows, args.get("origin", "")))
    if isinstance(reply, Refusal):
        raise RemoteError(reply.reason, reply.message)
    adopted: int = reply.producers
    return adopted


METHODS: dict[str, Method] = {
    "individually_acked": individually_acked,
    **READS,
    **transaction_view.METHODS,
    "end_transaction": end_transaction,
    "append": append,
    "origins": newest_origins,
    "export_producers": export_producers,
    "adopt_producers": adopt_producers,
    "resume_dead_letters": resume_dead_letters,
    "stats": stats,
    "subscriptions": subscriptions,
    "subscription_properties": subscription_properties,
    "has_subscription": has_subscription,
    "create_subscription": create_subscription,
    "delete_subscription": delete_subscription,
    "set_properties": set_properties,
    "set_replicated": set_replicated,
    "seek": seek,
    "describe_subscription": describe_subscription,
    "find_unacked": find_unacked,
    "subscription": subscription,
    "whereabouts": message_status,
    "skip_to": skip_to,
    "expire": expire,
    "plan_undo": plan_undo,
    "undo": undo,
    "terminate": terminate,
    "compact": compact,
    "compaction_status": compaction_status,
    "last_message_id": last_message_id,
    "peek": peek,
    "unacked_entries": unacked_entries,
}
