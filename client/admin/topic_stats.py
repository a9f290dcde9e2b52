"""The statistics of topics, under Pulsar's names of fields.

Rates are a second's, sizes in bytes, times in milliseconds since 1970. Backlogs count entries: a
batch is one.
"""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict


class Incoming(TypedDict):
    """What arrives."""

    msgRateIn: float
    msgThroughputIn: float
    averageMsgSize: float


class Outgoing(TypedDict):
    """What is delivered."""

    msgRateOut: float
    msgThroughputOut: float
    msgOutCounter: int
    bytesOutCounter: int


class Delivering(Outgoing):
    """The deliveries, and the times of the last ones."""

    msgRateRedeliver: float
    lastConsumedTimestamp: int
    lastAckedTimestamp: int
    lastConsumedFlowTimestamp: int


class ConnectedClient(TypedDict):
    """A connected client."""

    address: str
    clientVersion: str
    connectedSince: str
    metadata: dict[str, str]


class Publisher(Incoming, ConnectedClient):
    """A connected producer."""

    producerName: str
    producerId: int
    accessMode: str


class ConnectedConsumer(Delivering, ConnectedClient):
    """A connected consumer."""

    consumerName: str
    availablePermits: int
    unackedMessages: int
    blockedConsumerOnUnackedMsgs: bool
    priorityLevel: int


class SubscriptionSums(Delivering):
    """A subscription of one or of several partitions."""

    msgDelayed: int
    msgBacklog: int
    backlogSize: int
    totalMsgExpired: int
    unackedMessages: int
    nonContiguousDeletedMessagesRanges: int
    pendingTransactions: int
    pendingEntries: int
    isDurable: bool
    isReplicated: bool
    subscriptionProperties: dict[str, str]
    unreadable: list[Any]
    consumers: list[ConnectedConsumer]
    type: NotRequired[str]


class SubscriptionStats(SubscriptionSums):
    """A subscription of a partition."""

    expiredEntries: dict[str, int]
    blockedSubscriptionOnUnackedMsgs: bool
    drainingHashesCount: int
    activeConsumerName: NotRequired[str]


class ReplicationSums(TypedDict):
    """The replication of one or of several partitions to another cluster."""

    msgRateIn: float
    msgThroughputIn: float
    msgRateOut: float
    msgThroughputOut: float
    replicationBacklog: int
    backlogSize: int
    entriesInFlight: int
    entriesReplicated: int
    entriesDuplicate: int
    replicationDelayInSeconds: int
    replicationDelayInMillis: int
    subscriptionProgressDelayInMillis: int
    connected: bool
    stoppedReason: str


class ReplicatorStats(ReplicationSums):
    """The replication of a partition to another cluster."""

    state: str
    entriesPassedOver: dict[str, int]
    subscriptionProgressReason: str


class CompactionStats(TypedDict):
    """The last compaction."""

    lastCompactionRemovedEventCount: int
    lastCompactionSucceedTimestamp: int
    lastCompactionFailedTimestamp: int
    lastCompactionDurationTimeInMills: int


class TopicSums(Incoming, Outgoing):
    """Numbers of one or of several partitions."""

    msgInCounter: int
    bytesInCounter: int
    waitingPublishers: int
    storageSize: int
    retainedSize: int
    backlogSize: int
    numberOfEntries: int
    trimmedLedgersPending: int
    trimmedSizePending: int
    ongoingTxnCount: int
    committedTxnCount: int
    abortedTxnCount: int
    lastPublishTimeStamp: int
    oldestBacklogMessageAgeSeconds: int
    terminated: bool
    publishers: list[Publisher]


class TopicStats(TopicSums):
    """A plain topic, or a partition."""

    deduplicationStatus: str
    subscriptions: dict[str, SubscriptionStats]
    replication: dict[str, ReplicatorStats]
    producersHeldBack: str | None
    firstPosition: str
    appliedPolicies: dict[str, Any]
    failedReads: int
    skippedEntries: int
    erasedMessages: NotRequired[int]
    topicEpoch: int | None
    compaction: CompactionStats


class PartitionedMetadata(TypedDict):
    """The number of partitions."""

    partitions: int


class PartitionedTopicStats(TopicSums):
    """A partitioned topic; ``partitions`` is empty if they aren't asked for."""

    metadata: PartitionedMetadata
    subscriptions: dict[str, SubscriptionSums]
    replication: dict[str, ReplicationSums]
    partitions: dict[str, TopicStats]


class StoredLedger(TypedDict):
    """A ledger of a journal."""

    ledgerId: int
    entries: int
    size: int
    offloaded: bool


class CursorStats(TypedDict):
    """A durable subscription's cursor."""

    markDeletePosition: str
    numberOfEntriesSinceFirstNotAckedMessage: int
    totalNonContiguousDeletedMessagesRange: int
    individuallyDeletedMessages: NotRequired[str]


class InternalStats(TypedDict):
    """The ledgers and cursors of a plain topic or a partition."""

    numberOfEntries: int
    totalSize: int
    currentLedgerEntries: int
    currentLedgerSize: int
    state: str
    ledgers: list[StoredLedger]
    cursors: dict[str, CursorStats]
    lastConfirmedEntry: NotRequired[str]


class PartitionedInternalStats(TypedDict):
    """The ledgers and cursors of every partition."""

    metadata: PartitionedMetadata
    partitions: dict[str, InternalStats]
