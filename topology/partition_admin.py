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

from velaray.actors.adoption import AdoptProducers, read_rows, rows_of
from velaray.actors.ledger_table import NoSuchEntryError
from velaray.actors.machine import Reason, Refusal
from velaray.actors.partition import (
    DeleteSubscription,
    PartitionState,
    StartAt,
    Subscription,
    Terminate,
)
from velaray.events.ids import Position, TransactionId
from velaray.topology.dead_letters import append
from velaray.topology.links import RemoteError
from velaray.topology.moving import partition_failover, partition_moves
from velaray.topology.replication import (
    foreign_ids,
    foreign_transactions,
    outgoing_transactions,
    progress_export,
)
from velaray.topology.replication.replication_view import replication
from velaray.topology.subscription_view import describe_subscription
from velaray.topology.transactions import transaction_view
from velaray.wire.messages import read_metadata, split_entry
from velaray.wire.replication import REPLICATOR_PREFIX

if TYPE_CHECKING:
    from velaray.topology.partition_body import PartitionBody

Method = Callable[["PartitionBody", dict[str, Any]], Awaitable[Any]]


async def _subscription(partition: PartitionBody, name: str) -> Subscription:
    found = await partition.runtime.read(lambda state: state.subscriptions.get(name))
    if found is None:
        raise RemoteError(Reason.NOT_FOUND, f"{partition.topic} has no subscription {name!r}")
    return found


def _id(partition: PartitionBody, position: Position) -> list[int]:
    return [position.ledger_id, position.entry_id, partition.partition_index]


async def _cursor_stats(partition: PartitionBody, subscription: Subscription) -> dict[str, Any]:
    name, end = subscription.ref.name, partition.end_offset
    stats = await partition.ask_subscription(name, "stats", end)
    mark = partition.runtime.state.table.position_before(stats["acked_before"])
    return {
        **stats,
        "backlog_bytes": partition.upkeep.backlog.bytes_from(stats["acked_before"]),
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


async def _backlog_stats(partition: PartitionBody, marks: list[int]) -> dict[str, Any]:
    """Of the slowest durable subscription, and what is done about it."""
    upkeep, slowest = partition.upkeep, min(marks, default=partition.end_offset)
    return {
        "retained_bytes": upkeep.backlog.bytes_from(0),
        "backlog_bytes": upkeep.backlog.bytes_from(slowest),
        "oldest_backlog_ms": await upkeep.backlog.age_ms(slowest),
        "held_back": None if upkeep.held_back is None else str(upkeep.held_back),
        "policies": dict(partition.policies.raw),
    }


async def stats(partition: PartitionBody, args: dict[str, Any]) -> dict[str, Any]:
    """Counters of the log, its producers and its subscriptions."""
    end_offset = partition.end_offset
    log = await partition.runtime.read(lambda state: _log_stats(state, end_offset))
    durable = await partition.runtime.read(lambda state: sorted(state.subscriptions.items()))
    subscriptions = {name: await _cursor_stats(partition, found) for name, found in durable}
    marks = [found["acked_before"] for found in subscriptions.values()]
    for name, channel in list(partition.channels.items()):
        if not channel.durable:
            found = await channel.ask("stats", partition.end_offset)
            subscriptions[name] = {**found, "durable": False}
    return {
        "topic": partition.topic,
        **log,
        **await _backlog_stats(partition, marks),
        "producers": [
            {"name": producing.name, "producer_id": producing.producer_id}
            for session in partition.sessions
            for producing in session.producers()
        ],
        "subscriptions": subscriptions,
        "replication": await replication(partition, {}),
        "committed": partition.meter.committed,
        "aborted": partition.meter.aborted,
        "cached_bytes": partition.cache.bytes_held,
        "compaction": await partition.compactor.stats(),
        "runtime": asdict(partition.runtime.stats),
    }


async def individually_acked(
    partition: PartitionBody, args: dict[str, Any]
) -> dict[str, list[tuple[int, int, int]]]:
    """What is acknowledged beyond each durable subscription's mark-delete: runs of whole entries,
    as (ledger, first, last), in one piece as long as they are in one ledger."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    for name in await partition.runtime.read(lambda state: sorted(state.subscriptions)):
        end = partition.end_offset
        stats = await partition.ask_subscription(name, "stats", end)
        if not stats["holes"]:
            found[name] = []
            continue
        mark = stats["acked_before"]
        unacked = await partition.ask_subscription(name, "unacked", [mark, end, end])
        acked = itertools.pairwise([mark, *unacked, end])
        table = partition.runtime.state.table
        found[name] = [
            (run.ledger_id, run.first_entry, run.first_entry + run.entries - 1)
            for first, behind in itertools.islice(acked, 0, None, 2)
            for run in table.runs(first, behind)
        ]
    return found


async def subscriptions(partition: PartitionBody, args: dict[str, Any]) -> list[str]:
    """The names of the durable subscriptions."""
    return await partition.runtime.read(lambda state: sorted(state.subscriptions))


async def subscription_properties(
    partition: PartitionBody, args: dict[str, Any]
) -> dict[str, dict[str, str]]:
    """The properties of the durable subscriptions, by name; no subscription is activated."""
    return await partition.runtime.read(
        lambda state: {
            name: dict(found.properties) for name, found in sorted(state.subscriptions.items())
        }
    )


async def subscription(partition: PartitionBody, args: dict[str, Any]) -> dict[str, Any]:
    """Which incarnation of a durable subscription there is, and since which offset."""
    ref = (await _subscription(partition, args["name"])).ref
    return {"incarnation": ref.incarnation, "start_offset": ref.start_offset}


async def create_subscription(partition: PartitionBody, args: dict[str, Any]) -> None:
    """Create a durable subscription at ``position``, or "earliest" or "latest"."""
    at = args.get("position", "latest")
    start: StartAt | int
    if isinstance(at, str):
        start = StartAt(at)
    else:
        start = foreign_ids.at_or_after(partition, Position(at[0], at[1]))
    await partition.create_subscription(args["name"], start, args.get("properties", {}))


async def delete_subscription(partition: PartitionBody, args: dict[str, Any]) -> None:
    """Delete a durable subscription; refused while consumers are connected unless ``force``."""
    name = args["name"]
    _check_no_replicator(name, "deleted")
    await _subscription(partition, name)
    channel = partition.channels.get(name)
    if channel is not None and channel.consumers and not args.get("force"):
        raise RemoteError(Reason.BUSY, f"subscription {name!r} has connected consumers")
    await partition.delete_subscription(DeleteSubscription(name))


async def set_replicated(partition: PartitionBody, args: dict[str, Any]) -> None:
    """Whether what a subscription has is to go to other clusters."""
    _check_no_replicator(args["name"], "replicated")
    await partition.set_replicated(args["name"], replicated=args["replicated"])


def _check_no_replicator(name: str, what: str) -> None:
    if name.startswith(REPLICATOR_PREFIX):
        why = f"{name!r} is a replicator: it can't be {what}; take its cluster out of the policy"
        raise RemoteError(Reason.NOT_ALLOWED, f"{why} 'replication'")


async def _reset(partition: PartitionBody, name: str, offset: int, reason: str) -> None:
    _check_no_replicator(name, "moved")
    await _subscription(partition, name)
    await partition.reset_subscription(name, offset, reason)


async def seek(partition: PartitionBody, args: dict[str, Any]) -> list[int]:
    """Move a subscription to ``position`` or to publish time ``time_ms``; returns where to."""
    if "time_ms" in args:
        offset = await partition.offset_at_time(args["time_ms"])
    else:
        ledger_id, entry_id = args["position"][:2]
        offset = foreign_ids.at_or_after(partition, Position(ledger_id, entry_id))
    await _reset(partition, args["name"], offset, "seek by an administrator")
    return _id(partition, partition.runtime.state.table.position_before(offset))


async def find_unacked(partition: PartitionBody, args: dict[str, Any]) -> int | None:
    """The offset of a subscription's ``number``-th (from 1) un-acknowledged entry, or None."""
    await _subscription(partition, args["name"])
    wanted = [args["number"], partition.end_offset]
    offset: int | None = await partition.ask_subscription(args["name"], "find_unacked", wanted)
    return offset


async def whereabouts(partition: PartitionBody, args: dict[str, Any]) -> dict[str, Any]:
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
    found: dict[str, Any] = await partition.ask_subscription(args["name"], "whereabouts", offset)
    return transaction_view.undecided(partition, offset) or found


async def skip_to(partition: PartitionBody, args: dict[str, Any]) -> None:
    """Acknowledge everything before ``offset`` (without one: all there is), for good."""
    await _subscription(partition, args["name"])
    end = partition.end_offset
    offset = min(args.get("offset", end), end)
    await partition.sync()
    await partition.ask_subscription(args["name"], "skip_to", [end, offset])
    partition.upkeep.touched(args["name"])


async def undo(partition: PartitionBody, args: dict[str, Any]) -> dict[str, Any]:
    """Undo moves of a subscription's cursor, or (``preview``) only tell what would change.

    Back to after event ``sequence`` or to time ``at_ms``; a preview without either: to before
    the last move. (An undoing that is repeated would undo itself if it could say that.)
    """
    name = args["name"]
    await _subscription(partition, name)
    moment = [args.get("sequence"), args.get("at_ms")]
    if args.get("preview"):
        found = await partition.ask_subscription(name, "undo", [*moment, None])
    else:
        found = await partition.undo(name, moment)
        partition.upkeep.touched(name)
    return {"topic": partition.topic, **found}


async def expire(partition: PartitionBody, args: dict[str, Any]) -> None:
    """Have a subscription's messages that are older than ``age_ms`` expire now."""
    await partition.upkeep.expire(args["name"], args["age_ms"])


async def terminate(partition: PartitionBody, args: dict[str, Any]) -> list[int]:
    """Take no more messages; returns the last message id. Doing it again changes nothing."""
    reply = await partition.runtime.ask(Terminate())
    if isinstance(reply, Refusal):
        raise RemoteError(reply.reason, reply.message)
    partition.end_topic(reply.end_offset)
    return _id(partition, reply.last_position)


async def compact(partition: PartitionBody, args: dict[str, Any]) -> None:
    """Begin to compact; refused CONFLICT while a compaction runs."""
    partition.compactor.trigger()


async def compaction_status(partition: PartitionBody, args: dict[str, Any]) -> dict[str, str]:
    """How the last compaction went: NOT_RUN, RUNNING, SUCCESS or ERROR, and its error."""
    return partition.compactor.described()


async def last_message_id(partition: PartitionBody, args: dict[str, Any]) -> list[int]:
    """The last entry's id; entry id -1 if there is none."""
    table = partition.runtime.state.table
    return _id(partition, table.position_before(partition.end_offset))


async def peek(partition: PartitionBody, args: dict[str, Any]) -> dict[str, Any] | None:
    """The ``number``-th (from 1) un-acknowledged entry of a subscription, or None."""
    offset = await find_unacked(partition, args)
    if offset is None:
        return None
    entry = await partition.entry(offset)
    metadata, payload = split_entry(entry.data)
    return {
        "id": _id(partition, partition.position_of(offset)),
        "metadata": metadata.SerializeToString(),
        "payload": bytes(payload),
        "messages": entry.messages,
        "publish_time": read_metadata(entry.data).publish_time,
    }


async def unacked_entries(partition: PartitionBody, args: dict[str, Any]) -> dict[str, Any]:
    """The first ``most`` entries from offset ``first`` on that a subscription hasn't acknowledged.

    With ``next``, where to go on; None at the end. Delayed and delivered ones are among them.
    """
    name, first, most = args["name"], args["first"], args["most"]
    await _subscription(partition, name)
    end = partition.end_offset
    flat = await partition.ask_subscription(name, "unacked", [first, most, end])
    ranges = map(range, flat[::2], flat[1::2])
    offsets = [offset for each in ranges for offset in each]
    entries = []
    for offset in offsets:
        with contextlib.suppress(NoSuchEntryError):  # it was acknowledged meanwhile, and trimmed
            metadata, payload = split_entry((await partition.entry(offset)).data)
            found = _id(partition, partition.position_of(offset))
            entries.append([found, metadata.SerializeToString(), bytes(payload)])
    return {"entries": entries, "next": offsets[-1] + 1 if len(offsets) >= most else None}


async def has_subscription(partition: PartitionBody, args: dict[str, Any]) -> None:
    """Refused NOT_FOUND if there is no subscription of this name and incarnation: it was deleted.

    Never answered by a superseded activation.
    """
    found = await partition.read_certain(lambda state: state.subscriptions.get(args["name"]))
    if found is None or found.ref.incarnation != args["incarnation"]:
        raise RemoteError(
            Reason.NOT_FOUND, f"subscription {args['name']!r} of {partition.topic} was deleted"
        )


async def resume_dead_letters(partition: PartitionBody, args: dict[str, Any]) -> None:
    """A subscription has dead letters under way, and nobody who publishes them."""
    await partition.resume_dead_letters(args["name"], args["incarnation"])


async def end_transaction(partition: PartitionBody, args: dict[str, Any]) -> list[str]:
    """A coordinator's verdict, for this partition or one of its subscriptions; returns the
    clusters that are to know its participants."""
    transaction = TransactionId(args["coordinator"], args["sequence"])
    verdict = {"commit": args["commit"], "alone": args["alone"]}
    return list(await partition.end_transaction(transaction, args["subscription"], **verdict))


async def newest_origins(partition: PartitionBody, args: dict[str, Any]) -> dict[str, list[int]]:
    """The newest position that came of each cluster which replicates to here, durably."""
    return await partition.runtime.read(
        lambda state: {
            cluster: list(origin.last) for cluster, origin in state.origins.by_cluster.items()
        }
    )


async def export_producers(partition: PartitionBody, args: dict[str, Any]) -> list[Any]:
    """What is known of every producer, for a partition of another cluster to adopt."""
    return await partition.runtime.read(lambda state: [list(row) for row in rows_of(state)])


async def adopt_producers(partition: PartitionBody, args: dict[str, Any]) -> int:
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


async def pulls(partition: PartitionBody, args: dict[str, Any]) -> dict[str, Any]:
    """What the pullers of this partition say of themselves, by cluster; None: not now."""
    return await partition.pulls.statuses()


async def import_progress(partition: PartitionBody, args: dict[str, Any]) -> None:
    """Take in ``part``, a SubscriptionProgress of cluster ``source``, durably."""
    await partition.progress.take(args["source"], args["part"])


METHODS: dict[str, Method] = {
    "individually_acked": individually_acked,
    "pulls": pulls,
    **transaction_view.METHODS,
    **partition_failover.METHODS,
    **partition_moves.METHODS,
    **progress_export.METHODS,
    **outgoing_transactions.METHODS,
    **foreign_transactions.METHODS,
    "end_transaction": end_transaction,
    "append": append,
    "origins": newest_origins,
    "import_progress": import_progress,
    "export_producers": export_producers,
    "adopt_producers": adopt_producers,
    "resume_dead_letters": resume_dead_letters,
    "replication": replication,
    "stats": stats,
    "subscriptions": subscriptions,
    "subscription_properties": subscription_properties,
    "has_subscription": has_subscription,
    "create_subscription": create_subscription,
    "delete_subscription": delete_subscription,
    "set_replicated": set_replicated,
    "seek": seek,
    "describe_subscription": describe_subscription,
    "find_unacked": find_unacked,
    "subscription": subscription,
    "whereabouts": whereabouts,
    "skip_to": skip_to,
    "expire": expire,
    "undo": undo,
    "terminate": terminate,
    "compact": compact,
    "compaction_status": compaction_status,
    "last_message_id": last_message_id,
    "peek": peek,
    "unacked_entries": unacked_entries,
}
