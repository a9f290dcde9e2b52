"""Routes of the admin interface for transactions, as Pulsar's ``/admin/v3/transactions``.

``GET /admin/v3/transactions`` (all open transactions) is velaray's own, as are some fields.
``transactionMetadata`` also answers for ended transactions, with their outcome, which is kept for
ever. Queries don't start coordinators that have never been used. Every user of the admin interface
may abort any transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from aiohttp import web
from typing_extensions import TypedDict

from velaray.actors.coordinator.state import Status
from velaray.actors.machine import Reason
from velaray.admin.binding import Route, body_of, given
from velaray.admin.http import (
    AdminError,
    actor_system_of,
    answer,
    ask_catalog,
    done,
    find_single,
    number_in_path,
)
from velaray.broker.actor_messages import Ledgers
from velaray.broker.catalog import messages as catalog_messages
from velaray.broker.coordinator import messages as coordinator_messages
from velaray.broker.coordinator.coordinators import ASSIGN
from velaray.broker.partition import messages as m
from velaray.client.admin import transactions as operations
from velaray.client.admin.operations import AnyObject, Parameter, Whole, reads
from velaray.events.ids import ActorKey, TopicName, check_local_name
from velaray.journal.errors import NotStored
from velaray.journal.replay import load_manifest
from velaray.topology.actor_system import ActorSystem
from velaray.topology.fan_out import each
from velaray.topology.messages import ReplyT, Request
from velaray.topology.rpc import RemoteError, reason_of
from velaray.topology.transient import TRANSIENT

PARTICIPANT_S = 5.0
"""Time limit of a participant's answer."""
BATCH_INDEX: Parameter[int | None] = Parameter(
    "batchIndex", Whole, None, "Which message of the batch."
)

# -- coordinators ------------------------------------------------------------------


async def _count(request: web.Request) -> int:
    """The number of coordinators."""
    return int((await ask_catalog(request, catalog_messages.Topic(str(ASSIGN))))["partitions"])


async def _wanted(request: web.Request) -> list[int]:
    """The coordinator of the query parameter, or all of them. Raises `AdminError`."""
    number, count = given(request, operations.COORDINATOR), await _count(request)
    return list(range(count)) if number is None else [_coordinator(number, count)]


def _coordinator(number: int, count: int) -> int:
    if number >= count:
        raise AdminError(404, f"there is no coordinator {number}: they are 0 to {count - 1}")
    return number


async def _ask(actor_system: ActorSystem, number: int, request: Request[ReplyT]) -> ReplyT | None:
    """Call a coordinator; None if it has never been used."""
    key = ActorKey.of_coordinator(number)
    try:
        await load_manifest(actor_system.store, key.text())
    except NotStored:
        return None
    return await actor_system.request(key, request)


async def list_coordinators(request: web.Request) -> web.Response:
    """The coordinators, and the URL where clients look them up."""
    clusters = await ask_catalog(request, catalog_messages.Clusters())
    own = clusters[actor_system_of(request).config.name]
    url = own["service_url"] or own["service_url_tls"]
    count = await _count(request)
    return answer([{"id": number, "brokerServiceUrl": url} for number in range(count)])


def _stats(raw: dict[str, Any] | None) -> dict[str, Any]:
    if raw is None:
        raw = dict.fromkeys(("last_sequence", "low_water", "open", "ending"), 0)
        raw.update(dict.fromkeys(("committed", "aborted", "timed_out"), 0), recovery_ms=None)
    began_ms, ended_ms = raw["recovery_ms"] or (0, 0)
    return {
        "state": "None" if raw["recovery_ms"] is None else "Ready",
        "leastSigBits": raw["last_sequence"],
        "lowWaterMark": raw["low_water"],
        "ongoingTxnSize": raw["open"] + raw["ending"],
        "recoverStartTime": began_ms,
        "recoverEndTime": ended_ms,
        "openTxnSize": raw["open"],
        "endingTxnSize": raw["ending"],
        "committedTxnCount": raw["committed"],
        "abortedTxnCount": raw["aborted"],
        "timedOutTxnCount": raw["timed_out"],
    }


async def coordinator_stats(request: web.Request) -> web.Response:
    """Statistics of one coordinator, or of all by number."""
    actor_system, wanted = actor_system_of(request), await _wanted(request)
    found = await each(
        wanted, lambda number: _ask(actor_system, number, coordinator_messages.Stats())
    )
    if given(request, operations.COORDINATOR) is not None:
        return answer(_stats(found[0]))
    return answer({str(number): _stats(raw) for number, raw in zip(wanted, found, strict=True)})


async def coordinator_internals(request: web.Request) -> web.Response:
    """The ledgers of a coordinator's journal."""
    number = _coordinator(number_in_path(request, "coordinator"), await _count(request))
    ledgers = await _ask(actor_system_of(request), number, Ledgers())
    key = ActorKey.of_coordinator(number)
    return answer({"transactionLogStats": _journal(key, ledgers or [])})


def _journal(key: ActorKey, ledgers: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "managedLedgerName": key.text(),
        "managedLedgerInternalStats": {
            "numberOfEntries": sum(ledger["records"] for ledger in ledgers),
            "totalSize": sum(ledger["bytes"] for ledger in ledgers),
            "state": "LedgerOpened" if ledgers else "None",
            "ledgers": [
                {
                    "ledgerId": ledger["ledger_id"],
                    "entries": ledger["records"],
                    "size": ledger["bytes"],
                }
                for ledger in ledgers
            ],
            "cursors": {},
        },
    }


async def scale(request: web.Request) -> web.Response:
    """Set the number of coordinators to the one in the body, which must not be smaller."""
    wanted, count = body_of(request), await _count(request)
    if wanted <= count:
        raise AdminError(406, f"there are {count} coordinators, and their number can only grow")
    await ask_catalog(request, catalog_messages.GrowPartitions(str(ASSIGN), wanted))
    return done()


# -- transactions ------------------------------------------------------------------


def _id(coordinator: int, sequence: int) -> str:
    return f"({coordinator},{sequence})"


async def list_transactions(request: web.Request) -> web.Response:
    """The open transactions, oldest first: ``total``, and at most ``most`` of them.

    The filters are ``status``, ``coordinatorId`` and ``olderThan`` (minimum age in milliseconds).
    """
    text, most = given(request, operations.STATUS), given(request, operations.MOST)
    status = None if text is None else Status(text)
    older_ms = given(request, operations.OLDER_THAN)
    found = await _listed(request, coordinator_messages.Transactions(most, status, older_ms))
    summaries = [each_one for part in found for each_one in part["transactions"]]
    summaries.sort(key=lambda known: (known["begun_ms"], known["coordinator"], known["sequence"]))
    return answer(
        {
            "total": sum(part["total"] for part in found),
            "transactions": [
                {
                    **_times(known),
                    "producedPartitions": known["partitions"],
                    "ackedPartitions": known["subscriptions"],
                }
                for known in summaries[:most]
            ],
        }
    )


async def _listed(
    request: web.Request, listing: coordinator_messages.Transactions
) -> list[dict[str, Any]]:
    actor_system, wanted = actor_system_of(request), await _wanted(request)
    found = await each(wanted, lambda number: _ask(actor_system, number, listing))
    return [part for part in found if part is not None]


def _times(known: dict[str, Any]) -> dict[str, Any]:
    """The fields of a transaction except its participants; an ended one has only a status."""
    return {
        "txnId": _id(known["coordinator"], known["sequence"]),
        "status": known["status"],
        "openTimestamp": known.get("begun_ms", 0),
        "timeoutAt": known.get("timeout_ms", 0),
        "owner": known.get("owner"),
        "client": known.get("client"),
        "age": known.get("age_ms"),
        "timeLeft": known.get("left_ms"),
        "timedOut": known.get("timed_out"),
    }


async def _transaction(request: web.Request, coordinator: int, sequence: int) -> dict[str, Any]:
    """A transaction as its coordinator describes it. Raises `RemoteError` (NOT_FOUND)."""
    found = None
    if coordinator < await _count(request):
        wanted = coordinator_messages.Transaction(sequence)
        found = await _ask(actor_system_of(request), coordinator, wanted)
    if found is None:
        raise RemoteError(
            Reason.NOT_FOUND, f"there has never been a transaction {_id(coordinator, sequence)}"
        )
    return {**found, "coordinator": coordinator, "sequence": sequence}


async def _described(request: web.Request, known: dict[str, Any]) -> dict[str, Any]:
    """The transaction ``known`` (see `_transaction`) with the data that its participants hold."""
    produced = known.get("partitions", [])
    acked = known.get("subscriptions", [])
    pairs = [(topic, None) for topic in produced] + [(topic, name) for topic, name in acked]
    held = await each(pairs, lambda pair: _held(request, known, *pair))
    told = dict(zip(pairs, held, strict=True))
    subscriptions: dict[str, dict[str, Any]] = {}
    for topic, name in acked:
        subscriptions.setdefault(topic, {})[name] = told[topic, name]
    return {
        **_times(known),
        "producedPartitions": {topic: told[topic, None] for topic in produced},
        "ackedPartitions": subscriptions,
        "waitsFor": [
            {
                "topic": one["topic"],
                "subscription": one["subscription"],
                "since": one["since_ms"],
                "failures": one["failures"],
                "lastError": one["error"] or None,
            }
            for one in known.get("untold", [])
        ],
    }


async def _held(
    request: web.Request, known: dict[str, Any], topic: str, subscription: str | None
) -> dict[str, Any]:
    """The data that a participant holds for the transaction; ``error`` if it is unavailable."""
    numbers = known["coordinator"], known["sequence"]
    if subscription is None:
        found = await _of_participant(request, topic, m.Transaction(*numbers))
        aborted = known["status"] == Status.ABORTING and not found.get("first")
        own = {"startPosition": found.get("first"), "aborted": aborted}
        return {**own, "entries": found.get("entries"), "error": found.get("error")}
    found = await _of_participant(request, topic, m.PendingAcks(subscription, *numbers))
    return {
        "cumulativeAckPosition": found.get("before"),
        "entries": found.get("entries"),
        "batches": found.get("batches"),
        "error": found.get("error"),
    }


async def _of_participant(request: web.Request, topic: str, asked: Request[Any]) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        place = await ask_catalog(request, catalog_messages.Topic(topic))
        key = ActorKey.of_partition(TopicName.parse(topic), place["incarnation"])
        return {**await actor_system_of(request).request(key, asked)}

    return await _or_error(ask())


async def _or_error(asking: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    try:
        async with asyncio.timeout(PARTICIPANT_S):
            return await asking
    except TRANSIENT as error:
        return {"error": reason_of(error)}


async def metadata(request: web.Request) -> web.Response:
    """All metadata of a transaction, open or ended."""
    known = await _transaction(
        request, number_in_path(request, "most"), number_in_path(request, "least")
    )
    return answer(await _described(request, known))


async def slow(request: web.Request) -> web.Response:
    """The open transactions that began ``timeout`` milliseconds ago or earlier, by id."""
    older_ms = number_in_path(request, "timeout")
    older = coordinator_messages.Transactions(1 << 40, older_ms=older_ms)
    listed = [one for part in await _listed(request, older) for one in part["transactions"]]
    found: dict[str, Any] = {}
    for one in listed:
        known = await _transaction(request, one["coordinator"], one["sequence"])
        if "begun_ms" in known:  # still open
            found[_id(one["coordinator"], one["sequence"])] = await _described(request, known)
    return answer(found)


async def abort(request: web.Request) -> web.Response:
    """Abort a transaction of any client; 202 while participants haven't completed the abort.

    Repeating the call has no effect. 409 if the transaction is committed.
    """
    coordinator, sequence = number_in_path(request, "most"), number_in_path(request, "least")
    await _transaction(request, coordinator, sequence)
    wanted = coordinator_messages.Abort(sequence)
    finished = await _ask(actor_system_of(request), coordinator, wanted)
    return done() if finished else web.Response(status=202)


# -- participants ------------------------------------------------------------------


async def _partition(request: web.Request) -> ActorKey:
    """The plain topic or partition of the path. Raises `AdminError`, `RemoteError`."""
    return (await find_single(request, "this")).keys()[0]


async def _ask_partition(request: web.Request, asked: Request[ReplyT]) -> ReplyT:
    return await actor_system_of(request).request(await _partition(request), asked)


def _subscription(request: web.Request) -> str:
    return check_local_name("subscription", request.match_info["subscription"])


def _marks(request: web.Request) -> dict[str, Any]:
    """The low-water marks, if requested; always empty, since participants don't use them."""
    return {"lowWaterMarks": {}} if given(request, operations.LOW_WATER_MARKS) else {}


async def buffer_stats(request: web.Request) -> web.Response:
    """The open transactions of a topic."""
    found = await _ask_partition(request, m.Transactions())
    began_ms, ended_ms = found["recovery_ms"]
    return answer(
        {
            "state": "Ready",
            "maxReadPosition": found["max_read"],
            "ongoingTxnSize": found["ongoing"],
            "hiddenEntries": found["hidden"],
            "recoverStartTime": began_ms,
            "recoverEndTime": ended_ms,
            **_marks(request),
        }
    )


async def in_buffer(request: web.Request) -> web.Response:
    """The messages of a transaction in a topic, and whether it is aborted there."""
    coordinator, sequence = number_in_path(request, "most"), number_in_path(request, "least")
    found = await _ask_partition(request, m.Transaction(coordinator, sequence))
    aborted = False
    if found["first"] is None:
        known = await _transaction(request, coordinator, sequence)
        aborted = known["status"] in (Status.ABORTING, Status.ABORTED)
    return answer(
        {"startPosition": found["first"], "aborted": aborted, "entries": found["entries"]}
    )


async def pending_stats(request: web.Request) -> web.Response:
    """The transactions with pending acknowledgements in a subscription."""
    found = await _ask_partition(request, m.PendingAcks(_subscription(request)))
    began_ms, ended_ms = found["recovery_ms"]
    return answer(
        {
            "state": "Ready",
            "ongoingTxnSize": found["transactions"],
            "pendingEntries": found["entries"],
            "pendingBatches": found["batches"],
            "recoverStartTime": began_ms,
            "recoverEndTime": ended_ms,
            **_marks(request),
        }
    )


async def in_pending(request: web.Request) -> web.Response:
    """The pending acknowledgements of a transaction in a subscription."""
    coordinator, sequence = number_in_path(request, "most"), number_in_path(request, "least")
    wanted = m.PendingAcks(_subscription(request), coordinator, sequence)
    found = await _ask_partition(request, wanted)
    return answer(
        {
            "cumulativeAckPosition": found["before"],
            "entries": found["entries"],
            "batches": found["batches"],
        }
    )


async def position_in_pending(request: web.Request) -> web.Response:
    """The state of a message, or of one of a batch (``batchIndex``), in a subscription."""
    index = given(request, BATCH_INDEX)
    position = number_in_path(request, "ledger"), number_in_path(request, "entry")
    wanted = m.PendingAt(_subscription(request), position, index)
    return answer({"state": await _ask_partition(request, wanted)})


async def buffer_internals(request: web.Request) -> web.Response:
    """The journal of a topic's transactions, which is the topic's own."""
    key = await _partition(request)
    found = _journal(key, await actor_system_of(request).request(key, Ledgers()))
    return answer({"snapshotType": "Segment", "segmentInternalStats": found})


async def pending_internals(request: web.Request) -> web.Response:
    """The journal of a subscription's pending acknowledgements, which is the subscription's own."""
    name, partition = _subscription(request), await _partition(request)
    actor_system = actor_system_of(request)
    ref = await actor_system.request(partition, m.Subscription(name))
    key = partition.of_subscription(name, ref["incarnation"])
    ledgers = await actor_system.request(key, Ledgers())
    return answer({"pendingAckLogStats": _journal(key, ledgers)})


class CoordinatorUrl(TypedDict):
    """A coordinator, and where clients look it up."""

    id: int
    brokerServiceUrl: str


class MessageState(TypedDict):
    """The state of a message's acknowledgement."""

    state: str


_BASE = operations.TRANSACTIONS
_TOPIC, _ONE = operations.OF_TOPIC, operations.ONE
_SUBSCRIPTION = f"{_TOPIC}/{{subscription}}"

ROUTES: tuple[Route, ...] = (
    Route(operations.LIST, list_transactions),
    Route(reads(f"{_BASE}/coordinators", list[CoordinatorUrl]), list_coordinators),
    Route(operations.COORDINATOR_STATS, coordinator_stats),
    Route(
        reads(f"{_BASE}/coordinatorInternalStats/{{coordinator}}", AnyObject),
        coordinator_internals,
    ),
    Route(operations.SCALE, scale),
    Route(operations.GET, metadata),
    Route(
        reads(f"{_BASE}/slowTransactions/{{timeout}}", dict[str, operations.TransactionMetadata]),
        slow,
    ),
    Route(operations.ABORT, abort),
    Route(operations.BUFFER_STATS, buffer_stats),
    Route(reads(f"{_BASE}/transactionBufferInternalStats/{_TOPIC}", AnyObject), buffer_internals),
    Route(
        reads(f"{_BASE}/transactionInBufferStats/{_TOPIC}/{_ONE}", operations.InBuffer), in_buffer
    ),
    Route(operations.PENDING_ACK_STATS, pending_stats),
    Route(reads(f"{_BASE}/pendingAckInternalStats/{_SUBSCRIPTION}", AnyObject), pending_internals),
    Route(
        reads(
            f"{_BASE}/transactionInPendingAckStats/{_SUBSCRIPTION}/{_ONE}", operations.InPendingAck
        ),
        in_pending,
    ),
    Route(
        reads(
            f"{_BASE}/positionStatsInPendingAck/{_SUBSCRIPTION}/{{ledger}}/{{entry}}",
            MessageState,
            BATCH_INDEX,
        ),
        position_in_pending,
    ),
)
