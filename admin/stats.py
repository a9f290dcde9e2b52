"""Statistics of topics in Pulsar's JSON, under Pulsar's field names where they exist.

Fields whose value is unknown are left out. Backlogs count entries, as in Pulsar: a batch is one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from velaray.wire.replication import REPLICATED_SUBSCRIPTION, REPLICATOR_PREFIX, is_replicated

Stats = dict[str, Any]


class Shown(NamedTuple):
    """Kinds of clients that the statistics list."""

    publishers: bool
    consumers: bool


EVERYBODY = Shown(publishers=True, consumers=True)

_TYPES = {
    "EXCLUSIVE": "Exclusive",
    "SHARED": "Shared",
    "FAILOVER": "Failover",
    "KEY_SHARED": "Key_Shared",
}
_ACCESS = {
    "SHARED": "Shared",
    "EXCLUSIVE": "Exclusive",
    "WAIT_FOR_EXCLUSIVE": "WaitForExclusive",
    "EXCLUSIVE_WITH_FENCING": "ExclusiveWithFencing",
}
_OUT_SUMS = ("msgRateOut", "msgThroughputOut", "msgOutCounter", "bytesOutCounter")
_LATEST = ("lastConsumedTimestamp", "lastAckedTimestamp", "lastConsumedFlowTimestamp")
_SUMS = (
    *_OUT_SUMS,
    "msgRateRedeliver",
    "msgDelayed",
    "msgBacklog",
    "backlogSize",
    "unackedMessages",
    "nonContiguousDeletedMessagesRanges",
    "totalMsgExpired",
    "pendingTransactions",
    "pendingEntries",
)
_TOPIC_SUMS = (
    *_OUT_SUMS,
    "msgRateIn",
    "msgThroughputIn",
    "msgInCounter",
    "bytesInCounter",
    "waitingPublishers",
    "storageSize",
    "retainedSize",
    "backlogSize",
    "numberOfEntries",
    "trimmedLedgersPending",
    "trimmedSizePending",
    "ongoingTxnCount",
    "committedTxnCount",
    "abortedTxnCount",
)

_REPLICATION_SUMS = (
    "msgRateIn",
    "msgThroughputIn",
    "msgRateOut",
    "msgThroughputOut",
    "replicationBacklog",
    "backlogSize",
    "entriesInFlight",
    "entriesReplicated",
    "entriesDuplicate",
)
_REPLICATION_WORST = (
    "replicationDelayInSeconds",
    "replicationDelayInMillis",
    "subscriptionProgressDelayInMillis",
)


def topic_stats(
    raw: Mapping[str, Any],
    sizes: Mapping[int, int],
    shown: Shown = EVERYBODY,
) -> Stats:
    """Statistics of one partition (or plain topic).

    Rates are means over ten seconds or more. Counters and timestamps begin when the partition
    becomes active.

    ``raw`` is the answer of the partition's ``stats``. ``sizes`` holds the stored bytes of each of
    its ledgers. ``storageSize`` excludes ledgers that wait for their deletion. ``firstPosition``,
    ``retainedSize``, the pending and unreadable entries, and the policies are velaray's own fields.
    """
    trimmed = raw["trimmed"]
    subscriptions = {
        name: {
            **_subscription(found, shown.consumers),
            "unreadable": raw["unreadable"].get(name, []),
        }
        for name, found in sorted(raw["subscriptions"].items())
        if not name.startswith(REPLICATOR_PREFIX)
    }
    return {
        **_incoming(raw),
        **{field: sum(each[field] for each in subscriptions.values()) for field in _OUT_SUMS},
        "msgInCounter": raw["messages_in"],
        "bytesInCounter": raw["bytes_in"],
        "lastPublishTimeStamp": raw["published_ms"],
        "deduplicationStatus": "Enabled" if raw["deduplicate"] else "Disabled",
        "waitingPublishers": sum(not each["ready"] for each in raw["producers"]),
        "publishers": [_publisher(each) for each in raw["producers"] if shown.publishers],
        "subscriptions": subscriptions,
        "replication": {name: _replicator(found) for name, found in raw["replication"].items()},
        "storageSize": sum(size for number, size in sizes.items() if number not in trimmed),
        "retainedSize": raw["retained_bytes"],
        "backlogSize": raw["backlog_bytes"],
        "oldestBacklogMessageAgeSeconds": raw["oldest_backlog_ms"] // 1000,
        "producersHeldBack": raw["held_back"],
        "trimmedLedgersPending": len(trimmed),
        "trimmedSizePending": sum(trimmed.values()),
        "firstPosition": "{}:{}".format(*raw["first_position"]),
        "appliedPolicies": raw["policies"],
        "failedReads": raw["failed_reads"],
        "skippedEntries": raw["skipped"],
        **({"erasedMessages": raw["erased_messages"]} if "erased_messages" in raw else {}),
        "numberOfEntries": raw["entries"],
        "topicEpoch": raw["topic_epoch"],
        "ongoingTxnCount": raw["ongoing"],
        "committedTxnCount": raw["committed"],
        "abortedTxnCount": raw["aborted"],
        "terminated": raw["terminated"],
        "compaction": {
            "lastCompactionRemovedEventCount": raw["compaction"]["removed"],
            "lastCompactionSucceedTimestamp": raw["compaction"]["succeeded_ms"],
            "lastCompactionFailedTimestamp": raw["compaction"]["failed_ms"],
            "lastCompactionDurationTimeInMills": raw["compaction"]["duration_ms"],
        },
    }


def _replicator(raw: Mapping[str, Any]) -> Stats:
    """Statistics of one replicator; the fields from ``state`` on are velaray's own."""
    return {
        "msgRateIn": raw["rate_in"],
        "msgThroughputIn": raw["throughput_in"],
        "msgRateOut": raw["rate_out"],
        "msgThroughputOut": raw["throughput_out"],
        "replicationBacklog": raw["backlog"],
        "connected": raw["connected"],
        "replicationDelayInSeconds": raw["lag_ms"] // 1000,
        "state": raw["state"],
        "stoppedReason": raw["reason"],
        "backlogSize": raw["backlog_bytes"],
        "replicationDelayInMillis": raw["lag_ms"],
        "entriesInFlight": raw["in_flight"],
        "entriesReplicated": raw["entries"],
        "entriesDuplicate": raw["duplicates"],
        "entriesPassedOver": raw["passed_over"],
        "subscriptionProgressDelayInMillis": raw["progress_lag_ms"],
        "subscriptionProgressReason": raw["progress_reason"],
    }


def _incoming(raw: Mapping[str, Any]) -> Stats:
    rate, throughput = raw["rate_in"], raw["throughput_in"]
    return {
        "msgRateIn": rate,
        "msgThroughputIn": throughput,
        "averageMsgSize": throughput / rate if rate else 0.0,
    }


def _outgoing(raw: Mapping[str, Any]) -> Stats:
    return {
        "msgRateOut": raw["rate_out"],
        "msgThroughputOut": raw["throughput_out"],
        "msgRateRedeliver": raw["rate_again"],
        "msgOutCounter": raw["messages"],
        "bytesOutCounter": raw["bytes"],
        "lastConsumedTimestamp": raw["consumed_ms"],
        "lastAckedTimestamp": raw["acked_ms"],
        "lastConsumedFlowTimestamp": raw["flowed_ms"],
    }


def _client(raw: Mapping[str, Any]) -> Stats:
    since = datetime.fromtimestamp(raw["connected_ms"] / 1000, UTC)
    return {
        "address": f"/{raw['address']}",
        "clientVersion": raw["client_version"],
        "connectedSince": since.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "metadata": raw["metadata"],
    }


def _publisher(raw: Mapping[str, Any]) -> Stats:
    return {
        "producerName": raw["name"],
        "producerId": raw["producer_id"],
        "accessMode": _ACCESS[raw["access"]],
        **_incoming(raw),
        **_client(raw),
    }


def _consumer(raw: Mapping[str, Any]) -> Stats:
    return {
        "consumerName": raw["name"],
        "availablePermits": raw["permits"],
        "unackedMessages": raw["unacked"],
        "blockedConsumerOnUnackedMsgs": raw["blocked"],
        "priorityLevel": raw["priority"],
        **_outgoing(raw),
        **_client(raw),
    }


def _subscription(raw: Mapping[str, Any], with_consumers: bool) -> Stats:
    consumers = raw["consumers"]
    found: Stats = {
        **_outgoing(raw),
        "msgDelayed": raw["delayed"],
        "msgBacklog": raw["backlog"],
        "backlogSize": raw.get("backlog_bytes", 0),
        "totalMsgExpired": sum(raw["expired"].values()),
        "expiredEntries": raw["expired"],
        "unackedMessages": sum(each["unacked"] for each in consumers),
        "blockedSubscriptionOnUnackedMsgs": raw["blocked"],
        "drainingHashesCount": raw["draining"],
        "nonContiguousDeletedMessagesRanges": raw["holes"],
        "pendingTransactions": raw["pending_transactions"],
        "pendingEntries": raw["pending_entries"],
        "isDurable": raw["durable"],
        "isReplicated": is_replicated(raw.get("properties", {})),
        "subscriptionProperties": {
            key: value
            for key, value in raw.get("properties", {}).items()
            if key != REPLICATED_SUBSCRIPTION
        },
        "consumers": [_consumer(each) for each in consumers if with_consumers],
    }
    if raw["type"] is not None:
        found["type"] = _TYPES[raw["type"]]
    active = [each["name"] for each in consumers if each["active"]]
    if active and raw["type"] in ("EXCLUSIVE", "FAILOVER"):
        found["activeConsumerName"] = active[0]
    return found


def partitioned_stats(partitions: Mapping[str, Stats]) -> Stats:
    """Statistics of a partitioned topic, from those of its partitions by name.

    Numbers are summed. Publishers and consumers of all partitions are listed one after the other: a
    client that is connected to three partitions is listed three times.
    """
    every = list(partitions.values())
    sums = {field: sum(stats[field] for stats in every) for field in _TOPIC_SUMS}
    rate, throughput = sums["msgRateIn"], sums["msgThroughputIn"]
    names = sorted({name for stats in every for name in stats["subscriptions"]})
    return {
        "metadata": {"partitions": len(partitions)},
        "publishers": [each for stats in every for each in stats["publishers"]],
        "subscriptions": {
            name: _merged([s["subscriptions"][name] for s in every if name in s["subscriptions"]])
            for name in names
        },
        "replication": _replication(every),
        **sums,
        "averageMsgSize": throughput / rate if rate else 0.0,
        "lastPublishTimeStamp": max((stats["lastPublishTimeStamp"] for stats in every), default=0),
        "oldestBacklogMessageAgeSeconds": max(
            (stats["oldestBacklogMessageAgeSeconds"] for stats in every), default=0
        ),
        "terminated": all(stats["terminated"] for stats in every),
    }


def _replication(every: Sequence[Stats]) -> Stats:
    """Replication by cluster: summed counters, the largest delay, the reasons of all partitions."""
    names = sorted({name for stats in every for name in stats["replication"]})
    found = {}
    for name in names:
        parts = [stats["replication"][name] for stats in every if name in stats["replication"]]
        reasons = sorted({part["stoppedReason"] for part in parts if part["stoppedReason"]})
        found[name] = {
            **{field: sum(part[field] for part in parts) for field in _REPLICATION_SUMS},
            **{field: max(part[field] for part in parts) for field in _REPLICATION_WORST},
            "connected": all(part["connected"] for part in parts),
            "stoppedReason": "; ".join(reasons),
        }
    return found


def _merged(parts: Sequence[Stats]) -> Stats:
    merged: Stats = {field: sum(part[field] for part in parts) for field in _SUMS}
    merged |= {field: max(part[field] for part in parts) for field in _LATEST}
    merged["isDurable"] = all(part["isDurable"] for part in parts)
    merged["isReplicated"] = any(part["isReplicated"] for part in parts)
    merged["subscriptionProperties"] = parts[0]["subscriptionProperties"]
    merged["unreadable"] = [problem for part in parts for problem in part["unreadable"]]
    merged["consumers"] = [each for part in parts for each in part["consumers"]]
    types = {part["type"] for part in parts if "type" in part}
    if len(types) == 1:
        merged["type"] = types.pop()
    return merged


def internal_stats(
    raw: Mapping[str, Any], sizes: Mapping[int, int], offloaded: Collection[int]
) -> Stats:
    """The ledgers and cursors of one partition; arguments as for `topic_stats`. ``offloaded`` are
    the ledgers that are in the archive."""
    current = raw["ledgers"][-1] if raw["ledgers"] else {"ledger_id": -1, "entries": 0}
    return {
        "currentLedgerEntries": current["entries"],
        "currentLedgerSize": sizes.get(current["ledger_id"], 0),
        "numberOfEntries": raw["entries"],
        "totalSize": sum(sizes.values()),
        "state": "Terminated" if raw["terminated"] else "LedgerOpened",
        "ledgers": [
            {
                "ledgerId": each["ledger_id"],
                "entries": each["entries"],
                "size": sizes.get(each["ledger_id"], 0),
                "offloaded": each["ledger_id"] in offloaded,
            }
            for each in raw["ledgers"]
        ],
        "cursors": {
            name: {
                "markDeletePosition": "{}:{}".format(*found["mark_delete"]),
                "numberOfEntriesSinceFirstNotAckedMessage": raw["end_offset"]
                - found["acked_before"],
                "totalNonContiguousDeletedMessagesRange": found["holes"],
            }
            for name, found in sorted(raw["subscriptions"].items())
            if found["durable"]
        },
    }


def ranges_text(ranges: Sequence[tuple[int, int, int]]) -> str:
    """Ranges of entries, (ledger, first, last), in Pulsar's notation."""
    return "[" + ",".join(f"({at}:{one - 1}..{at}:{last}]" for at, one, last in ranges) + "]"


def message_id(found: Sequence[int]) -> Stats:
    """A message id (ledger, entry, partition) in Pulsar's JSON."""
    ledger_id, entry_id, partition = found
    return {"ledgerId": ledger_id, "entryId": entry_id, "partitionIndex": partition}
