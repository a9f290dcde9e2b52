from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Event(_message.Message):
    __slots__ = ("ledger_opened", "cluster_registered", "tenant_created", "tenant_updated", "tenant_deleted", "namespace_created", "namespace_deleted", "policy_set", "policy_removed", "topic_created", "partitions_added", "topic_deleted", "topic_restored", "burial_begun", "topic_buried", "cluster_deleted", "tenant_home_set", "topic_properties_set", "migration_begun", "migration_advanced", "tenant_expected", "tenant_arrived", "producer_registered", "entry_appended", "topic_epoch_raised", "producer_forgotten", "topic_terminated", "subscription_created", "subscription_deleted", "subscription_swept", "entries_trimmed", "subscription_idle", "transaction_ended", "ledgers_unlisted", "producer_adopted", "subscription_properties_set", "delayed_entries_due", "transactions_replicated", "foreign_transaction_complete", "foreign_transaction_ended", "compaction_begun", "compaction_published", "compaction_swept", "entry_compacted", "generation_completed", "partition_fenced", "partition_unfenced", "foreign_transaction_arrived", "foreign_transaction_judged", "foreign_transaction_forgotten", "participants_named", "entries_skipped", "cursor_created", "entries_acked", "mark_deleted", "cursor_reset", "entries_delivered", "deliveries_returned", "dead_letters_intended", "dead_letters_moved", "acked_in_transaction", "acked_before_in_transaction", "transaction_acks_ended", "progress_taken", "entries_unskipped", "entries_expired", "consumer_attached", "consumer_detached", "deliveries_traced", "entries_asked_again", "cursor_restored", "transaction_begun", "partitions_joined", "subscriptions_joined", "transaction_decided", "transaction_finished", "series_committed", "series_forgotten", "transaction_spread", "schema_registered", "schemas_deleted")
    LEDGER_OPENED_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_REGISTERED_FIELD_NUMBER: _ClassVar[int]
    TENANT_CREATED_FIELD_NUMBER: _ClassVar[int]
    TENANT_UPDATED_FIELD_NUMBER: _ClassVar[int]
    TENANT_DELETED_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_CREATED_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_DELETED_FIELD_NUMBER: _ClassVar[int]
    POLICY_SET_FIELD_NUMBER: _ClassVar[int]
    POLICY_REMOVED_FIELD_NUMBER: _ClassVar[int]
    TOPIC_CREATED_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_ADDED_FIELD_NUMBER: _ClassVar[int]
    TOPIC_DELETED_FIELD_NUMBER: _ClassVar[int]
    TOPIC_RESTORED_FIELD_NUMBER: _ClassVar[int]
    BURIAL_BEGUN_FIELD_NUMBER: _ClassVar[int]
    TOPIC_BURIED_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_DELETED_FIELD_NUMBER: _ClassVar[int]
    TENANT_HOME_SET_FIELD_NUMBER: _ClassVar[int]
    TOPIC_PROPERTIES_SET_FIELD_NUMBER: _ClassVar[int]
    MIGRATION_BEGUN_FIELD_NUMBER: _ClassVar[int]
    MIGRATION_ADVANCED_FIELD_NUMBER: _ClassVar[int]
    TENANT_EXPECTED_FIELD_NUMBER: _ClassVar[int]
    TENANT_ARRIVED_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_REGISTERED_FIELD_NUMBER: _ClassVar[int]
    ENTRY_APPENDED_FIELD_NUMBER: _ClassVar[int]
    TOPIC_EPOCH_RAISED_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    TOPIC_TERMINATED_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_CREATED_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_DELETED_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_SWEPT_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_TRIMMED_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_IDLE_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ENDED_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_UNLISTED_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ADOPTED_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_PROPERTIES_SET_FIELD_NUMBER: _ClassVar[int]
    DELAYED_ENTRIES_DUE_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_REPLICATED_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_TRANSACTION_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_TRANSACTION_ENDED_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_BEGUN_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_SWEPT_FIELD_NUMBER: _ClassVar[int]
    ENTRY_COMPACTED_FIELD_NUMBER: _ClassVar[int]
    GENERATION_COMPLETED_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FENCED_FIELD_NUMBER: _ClassVar[int]
    PARTITION_UNFENCED_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_TRANSACTION_ARRIVED_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_TRANSACTION_JUDGED_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_TRANSACTION_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANTS_NAMED_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_SKIPPED_FIELD_NUMBER: _ClassVar[int]
    CURSOR_CREATED_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_ACKED_FIELD_NUMBER: _ClassVar[int]
    MARK_DELETED_FIELD_NUMBER: _ClassVar[int]
    CURSOR_RESET_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_DELIVERED_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_RETURNED_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_INTENDED_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_MOVED_FIELD_NUMBER: _ClassVar[int]
    ACKED_IN_TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    ACKED_BEFORE_IN_TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ACKS_ENDED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_TAKEN_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_UNSKIPPED_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_EXPIRED_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ATTACHED_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_DETACHED_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_TRACED_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_ASKED_AGAIN_FIELD_NUMBER: _ClassVar[int]
    CURSOR_RESTORED_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_BEGUN_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_JOINED_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_JOINED_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_DECIDED_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FINISHED_FIELD_NUMBER: _ClassVar[int]
    SERIES_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    SERIES_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_SPREAD_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_REGISTERED_FIELD_NUMBER: _ClassVar[int]
    SCHEMAS_DELETED_FIELD_NUMBER: _ClassVar[int]
    ledger_opened: LedgerOpened
    cluster_registered: ClusterRegistered
    tenant_created: TenantCreated
    tenant_updated: TenantUpdated
    tenant_deleted: TenantDeleted
    namespace_created: NamespaceCreated
    namespace_deleted: NamespaceDeleted
    policy_set: PolicySet
    policy_removed: PolicyRemoved
    topic_created: TopicCreated
    partitions_added: PartitionsAdded
    topic_deleted: TopicDeleted
    topic_restored: TopicRestored
    burial_begun: BurialBegun
    topic_buried: TopicBuried
    cluster_deleted: ClusterDeleted
    tenant_home_set: TenantHomeSet
    topic_properties_set: TopicPropertiesSet
    migration_begun: MigrationBegun
    migration_advanced: MigrationAdvanced
    tenant_expected: TenantExpected
    tenant_arrived: TenantArrived
    producer_registered: ProducerRegistered
    entry_appended: EntryAppended
    topic_epoch_raised: TopicEpochRaised
    producer_forgotten: ProducerForgotten
    topic_terminated: TopicTerminated
    subscription_created: SubscriptionCreated
    subscription_deleted: SubscriptionDeleted
    subscription_swept: SubscriptionSwept
    entries_trimmed: EntriesTrimmed
    subscription_idle: SubscriptionIdle
    transaction_ended: TransactionEnded
    ledgers_unlisted: LedgersUnlisted
    producer_adopted: ProducerAdopted
    subscription_properties_set: SubscriptionPropertiesSet
    delayed_entries_due: DelayedEntriesDue
    transactions_replicated: TransactionsReplicated
    foreign_transaction_complete: ForeignTransactionComplete
    foreign_transaction_ended: ForeignTransactionEnded
    compaction_begun: CompactionBegun
    compaction_published: CompactionPublished
    compaction_swept: CompactionSwept
    entry_compacted: EntryCompacted
    generation_completed: GenerationCompleted
    partition_fenced: PartitionFenced
    partition_unfenced: PartitionUnfenced
    foreign_transaction_arrived: ForeignTransactionArrived
    foreign_transaction_judged: ForeignTransactionJudged
    foreign_transaction_forgotten: ForeignTransactionForgotten
    participants_named: ParticipantsNamed
    entries_skipped: EntriesSkipped
    cursor_created: CursorCreated
    entries_acked: EntriesAcked
    mark_deleted: MarkDeleted
    cursor_reset: CursorReset
    entries_delivered: EntriesDelivered
    deliveries_returned: DeliveriesReturned
    dead_letters_intended: DeadLettersIntended
    dead_letters_moved: DeadLettersMoved
    acked_in_transaction: AckedInTransaction
    acked_before_in_transaction: AckedBeforeInTransaction
    transaction_acks_ended: TransactionAcksEnded
    progress_taken: ProgressTaken
    entries_unskipped: EntriesUnskipped
    entries_expired: EntriesExpired
    consumer_attached: ConsumerAttached
    consumer_detached: ConsumerDetached
    deliveries_traced: DeliveriesTraced
    entries_asked_again: EntriesAskedAgain
    cursor_restored: CursorRestored
    transaction_begun: TransactionBegun
    partitions_joined: PartitionsJoined
    subscriptions_joined: SubscriptionsJoined
    transaction_decided: TransactionDecided
    transaction_finished: TransactionFinished
    series_committed: SeriesCommitted
    series_forgotten: SeriesForgotten
    transaction_spread: TransactionSpread
    schema_registered: SchemaRegistered
    schemas_deleted: SchemasDeleted
    def __init__(self, ledger_opened: _Optional[_Union[LedgerOpened, _Mapping]] = ..., cluster_registered: _Optional[_Union[ClusterRegistered, _Mapping]] = ..., tenant_created: _Optional[_Union[TenantCreated, _Mapping]] = ..., tenant_updated: _Optional[_Union[TenantUpdated, _Mapping]] = ..., tenant_deleted: _Optional[_Union[TenantDeleted, _Mapping]] = ..., namespace_created: _Optional[_Union[NamespaceCreated, _Mapping]] = ..., namespace_deleted: _Optional[_Union[NamespaceDeleted, _Mapping]] = ..., policy_set: _Optional[_Union[PolicySet, _Mapping]] = ..., policy_removed: _Optional[_Union[PolicyRemoved, _Mapping]] = ..., topic_created: _Optional[_Union[TopicCreated, _Mapping]] = ..., partitions_added: _Optional[_Union[PartitionsAdded, _Mapping]] = ..., topic_deleted: _Optional[_Union[TopicDeleted, _Mapping]] = ..., topic_restored: _Optional[_Union[TopicRestored, _Mapping]] = ..., burial_begun: _Optional[_Union[BurialBegun, _Mapping]] = ..., topic_buried: _Optional[_Union[TopicBuried, _Mapping]] = ..., cluster_deleted: _Optional[_Union[ClusterDeleted, _Mapping]] = ..., tenant_home_set: _Optional[_Union[TenantHomeSet, _Mapping]] = ..., topic_properties_set: _Optional[_Union[TopicPropertiesSet, _Mapping]] = ..., migration_begun: _Optional[_Union[MigrationBegun, _Mapping]] = ..., migration_advanced: _Optional[_Union[MigrationAdvanced, _Mapping]] = ..., tenant_expected: _Optional[_Union[TenantExpected, _Mapping]] = ..., tenant_arrived: _Optional[_Union[TenantArrived, _Mapping]] = ..., producer_registered: _Optional[_Union[ProducerRegistered, _Mapping]] = ..., entry_appended: _Optional[_Union[EntryAppended, _Mapping]] = ..., topic_epoch_raised: _Optional[_Union[TopicEpochRaised, _Mapping]] = ..., producer_forgotten: _Optional[_Union[ProducerForgotten, _Mapping]] = ..., topic_terminated: _Optional[_Union[TopicTerminated, _Mapping]] = ..., subscription_created: _Optional[_Union[SubscriptionCreated, _Mapping]] = ..., subscription_deleted: _Optional[_Union[SubscriptionDeleted, _Mapping]] = ..., subscription_swept: _Optional[_Union[SubscriptionSwept, _Mapping]] = ..., entries_trimmed: _Optional[_Union[EntriesTrimmed, _Mapping]] = ..., subscription_idle: _Optional[_Union[SubscriptionIdle, _Mapping]] = ..., transaction_ended: _Optional[_Union[TransactionEnded, _Mapping]] = ..., ledgers_unlisted: _Optional[_Union[LedgersUnlisted, _Mapping]] = ..., producer_adopted: _Optional[_Union[ProducerAdopted, _Mapping]] = ..., subscription_properties_set: _Optional[_Union[SubscriptionPropertiesSet, _Mapping]] = ..., delayed_entries_due: _Optional[_Union[DelayedEntriesDue, _Mapping]] = ..., transactions_replicated: _Optional[_Union[TransactionsReplicated, _Mapping]] = ..., foreign_transaction_complete: _Optional[_Union[ForeignTransactionComplete, _Mapping]] = ..., foreign_transaction_ended: _Optional[_Union[ForeignTransactionEnded, _Mapping]] = ..., compaction_begun: _Optional[_Union[CompactionBegun, _Mapping]] = ..., compaction_published: _Optional[_Union[CompactionPublished, _Mapping]] = ..., compaction_swept: _Optional[_Union[CompactionSwept, _Mapping]] = ..., entry_compacted: _Optional[_Union[EntryCompacted, _Mapping]] = ..., generation_completed: _Optional[_Union[GenerationCompleted, _Mapping]] = ..., partition_fenced: _Optional[_Union[PartitionFenced, _Mapping]] = ..., partition_unfenced: _Optional[_Union[PartitionUnfenced, _Mapping]] = ..., foreign_transaction_arrived: _Optional[_Union[ForeignTransactionArrived, _Mapping]] = ..., foreign_transaction_judged: _Optional[_Union[ForeignTransactionJudged, _Mapping]] = ..., foreign_transaction_forgotten: _Optional[_Union[ForeignTransactionForgotten, _Mapping]] = ..., participants_named: _Optional[_Union[ParticipantsNamed, _Mapping]] = ..., entries_skipped: _Optional[_Union[EntriesSkipped, _Mapping]] = ..., cursor_created: _Optional[_Union[CursorCreated, _Mapping]] = ..., entries_acked: _Optional[_Union[EntriesAcked, _Mapping]] = ..., mark_deleted: _Optional[_Union[MarkDeleted, _Mapping]] = ..., cursor_reset: _Optional[_Union[CursorReset, _Mapping]] = ..., entries_delivered: _Optional[_Union[EntriesDelivered, _Mapping]] = ..., deliveries_returned: _Optional[_Union[DeliveriesReturned, _Mapping]] = ..., dead_letters_intended: _Optional[_Union[DeadLettersIntended, _Mapping]] = ..., dead_letters_moved: _Optional[_Union[DeadLettersMoved, _Mapping]] = ..., acked_in_transaction: _Optional[_Union[AckedInTransaction, _Mapping]] = ..., acked_before_in_transaction: _Optional[_Union[AckedBeforeInTransaction, _Mapping]] = ..., transaction_acks_ended: _Optional[_Union[TransactionAcksEnded, _Mapping]] = ..., progress_taken: _Optional[_Union[ProgressTaken, _Mapping]] = ..., entries_unskipped: _Optional[_Union[EntriesUnskipped, _Mapping]] = ..., entries_expired: _Optional[_Union[EntriesExpired, _Mapping]] = ..., consumer_attached: _Optional[_Union[ConsumerAttached, _Mapping]] = ..., consumer_detached: _Optional[_Union[ConsumerDetached, _Mapping]] = ..., deliveries_traced: _Optional[_Union[DeliveriesTraced, _Mapping]] = ..., entries_asked_again: _Optional[_Union[EntriesAskedAgain, _Mapping]] = ..., cursor_restored: _Optional[_Union[CursorRestored, _Mapping]] = ..., transaction_begun: _Optional[_Union[TransactionBegun, _Mapping]] = ..., partitions_joined: _Optional[_Union[PartitionsJoined, _Mapping]] = ..., subscriptions_joined: _Optional[_Union[SubscriptionsJoined, _Mapping]] = ..., transaction_decided: _Optional[_Union[TransactionDecided, _Mapping]] = ..., transaction_finished: _Optional[_Union[TransactionFinished, _Mapping]] = ..., series_committed: _Optional[_Union[SeriesCommitted, _Mapping]] = ..., series_forgotten: _Optional[_Union[SeriesForgotten, _Mapping]] = ..., transaction_spread: _Optional[_Union[TransactionSpread, _Mapping]] = ..., schema_registered: _Optional[_Union[SchemaRegistered, _Mapping]] = ..., schemas_deleted: _Optional[_Union[SchemasDeleted, _Mapping]] = ...) -> None: ...

class LedgerOpened(_message.Message):
    __slots__ = ("ledger_id", "epoch")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    epoch: int
    def __init__(self, ledger_id: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class ClusterRegistered(_message.Message):
    __slots__ = ("name", "service_url", "admin_url", "token", "progress", "own", "data_id", "service_url_tls", "admin_url_tls")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SERVICE_URL_FIELD_NUMBER: _ClassVar[int]
    ADMIN_URL_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    DATA_ID_FIELD_NUMBER: _ClassVar[int]
    SERVICE_URL_TLS_FIELD_NUMBER: _ClassVar[int]
    ADMIN_URL_TLS_FIELD_NUMBER: _ClassVar[int]
    name: str
    service_url: str
    admin_url: str
    token: str
    progress: str
    own: bool
    data_id: str
    service_url_tls: str
    admin_url_tls: str
    def __init__(self, name: _Optional[str] = ..., service_url: _Optional[str] = ..., admin_url: _Optional[str] = ..., token: _Optional[str] = ..., progress: _Optional[str] = ..., own: bool = ..., data_id: _Optional[str] = ..., service_url_tls: _Optional[str] = ..., admin_url_tls: _Optional[str] = ...) -> None: ...

class ClusterDeleted(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class TenantHomeSet(_message.Message):
    __slots__ = ("tenant", "cluster")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    cluster: str
    def __init__(self, tenant: _Optional[str] = ..., cluster: _Optional[str] = ...) -> None: ...

class MigrationBegun(_message.Message):
    __slots__ = ("tenant", "migration", "target", "progress", "max_lag", "found", "at_ms")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MIGRATION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    MAX_LAG_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    migration: int
    target: str
    progress: str
    max_lag: int
    found: _containers.RepeatedScalarFieldContainer[str]
    at_ms: int
    def __init__(self, tenant: _Optional[str] = ..., migration: _Optional[int] = ..., target: _Optional[str] = ..., progress: _Optional[str] = ..., max_lag: _Optional[int] = ..., found: _Optional[_Iterable[str]] = ..., at_ms: _Optional[int] = ...) -> None: ...

class MigrationAdvanced(_message.Message):
    __slots__ = ("tenant", "phase", "at_ms", "why")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    phase: str
    at_ms: int
    why: str
    def __init__(self, tenant: _Optional[str] = ..., phase: _Optional[str] = ..., at_ms: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class TenantExpected(_message.Message):
    __slots__ = ("tenant", "source", "migration")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    MIGRATION_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    source: str
    migration: int
    def __init__(self, tenant: _Optional[str] = ..., source: _Optional[str] = ..., migration: _Optional[int] = ...) -> None: ...

class TenantArrived(_message.Message):
    __slots__ = ("tenant", "stayed")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    STAYED_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    stayed: bool
    def __init__(self, tenant: _Optional[str] = ..., stayed: bool = ...) -> None: ...

class TenantCreated(_message.Message):
    __slots__ = ("tenant", "admin_roles", "allowed_clusters")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ADMIN_ROLES_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_CLUSTERS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    admin_roles: _containers.RepeatedScalarFieldContainer[str]
    allowed_clusters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tenant: _Optional[str] = ..., admin_roles: _Optional[_Iterable[str]] = ..., allowed_clusters: _Optional[_Iterable[str]] = ...) -> None: ...

class TenantUpdated(_message.Message):
    __slots__ = ("tenant", "admin_roles", "allowed_clusters")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ADMIN_ROLES_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_CLUSTERS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    admin_roles: _containers.RepeatedScalarFieldContainer[str]
    allowed_clusters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tenant: _Optional[str] = ..., admin_roles: _Optional[_Iterable[str]] = ..., allowed_clusters: _Optional[_Iterable[str]] = ...) -> None: ...

class TenantDeleted(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class NamespaceCreated(_message.Message):
    __slots__ = ("tenant", "namespace")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    namespace: str
    def __init__(self, tenant: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class NamespaceDeleted(_message.Message):
    __slots__ = ("tenant", "namespace")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    namespace: str
    def __init__(self, tenant: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class PolicySet(_message.Message):
    __slots__ = ("tenant", "namespace", "topic", "name", "value")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    namespace: str
    topic: str
    name: str
    value: bytes
    def __init__(self, tenant: _Optional[str] = ..., namespace: _Optional[str] = ..., topic: _Optional[str] = ..., name: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class PolicyRemoved(_message.Message):
    __slots__ = ("tenant", "namespace", "topic", "name")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    namespace: str
    topic: str
    name: str
    def __init__(self, tenant: _Optional[str] = ..., namespace: _Optional[str] = ..., topic: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class TopicCreated(_message.Message):
    __slots__ = ("topic", "partitions", "incarnation", "properties")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: int
    incarnation: int
    properties: _containers.ScalarMap[str, str]
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[int] = ..., incarnation: _Optional[int] = ..., properties: _Optional[_Mapping[str, str]] = ...) -> None: ...

class PartitionsAdded(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: int
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[int] = ...) -> None: ...

class TopicPropertiesSet(_message.Message):
    __slots__ = ("topic", "properties")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    properties: _containers.ScalarMap[str, str]
    def __init__(self, topic: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ...) -> None: ...

class TopicDeleted(_message.Message):
    __slots__ = ("topic", "restorable_until_ms", "deleted_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RESTORABLE_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    DELETED_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    restorable_until_ms: int
    deleted_ms: int
    def __init__(self, topic: _Optional[str] = ..., restorable_until_ms: _Optional[int] = ..., deleted_ms: _Optional[int] = ...) -> None: ...

class TopicRestored(_message.Message):
    __slots__ = ("incarnation",)
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    def __init__(self, incarnation: _Optional[int] = ...) -> None: ...

class BurialBegun(_message.Message):
    __slots__ = ("incarnation",)
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    def __init__(self, incarnation: _Optional[int] = ...) -> None: ...

class TopicBuried(_message.Message):
    __slots__ = ("incarnation",)
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    def __init__(self, incarnation: _Optional[int] = ...) -> None: ...

class ProducerRegistered(_message.Message):
    __slots__ = ("producer", "name", "at_ms", "origin")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    producer: int
    name: str
    at_ms: int
    origin: str
    def __init__(self, producer: _Optional[int] = ..., name: _Optional[str] = ..., at_ms: _Optional[int] = ..., origin: _Optional[str] = ...) -> None: ...

class ProducerAdopted(_message.Message):
    __slots__ = ("producer", "at_ms", "last_sequence_id", "chunk_sequence_id", "chunk_uuid", "chunk_id", "interleaved", "skipped_first", "skipped_end")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_UUID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    INTERLEAVED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIRST_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_END_FIELD_NUMBER: _ClassVar[int]
    producer: int
    at_ms: int
    last_sequence_id: int
    chunk_sequence_id: int
    chunk_uuid: str
    chunk_id: int
    interleaved: InterleavedEntries
    skipped_first: _containers.RepeatedScalarFieldContainer[int]
    skipped_end: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, producer: _Optional[int] = ..., at_ms: _Optional[int] = ..., last_sequence_id: _Optional[int] = ..., chunk_sequence_id: _Optional[int] = ..., chunk_uuid: _Optional[str] = ..., chunk_id: _Optional[int] = ..., interleaved: _Optional[_Union[InterleavedEntries, _Mapping]] = ..., skipped_first: _Optional[_Iterable[int]] = ..., skipped_end: _Optional[_Iterable[int]] = ...) -> None: ...

class InterleavedEntries(_message.Message):
    __slots__ = ("floor", "first", "highest")
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_FIELD_NUMBER: _ClassVar[int]
    floor: int
    first: _containers.RepeatedScalarFieldContainer[int]
    highest: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, floor: _Optional[int] = ..., first: _Optional[_Iterable[int]] = ..., highest: _Optional[_Iterable[int]] = ...) -> None: ...

class EntryAppended(_message.Message):
    __slots__ = ("producer", "sequence_id", "highest_sequence_id", "messages", "chunk_uuid", "chunk_id", "chunks", "at_ms", "deliver_at_ms", "key_hash", "txn_coordinator", "txn_sequence", "source_ledger", "source_entry", "skipped")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_UUID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    KEY_HASH_FIELD_NUMBER: _ClassVar[int]
    TXN_COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    TXN_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LEDGER_FIELD_NUMBER: _ClassVar[int]
    SOURCE_ENTRY_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    producer: int
    sequence_id: int
    highest_sequence_id: int
    messages: int
    chunk_uuid: str
    chunk_id: int
    chunks: int
    at_ms: int
    deliver_at_ms: int
    key_hash: int
    txn_coordinator: int
    txn_sequence: int
    source_ledger: int
    source_entry: int
    skipped: int
    def __init__(self, producer: _Optional[int] = ..., sequence_id: _Optional[int] = ..., highest_sequence_id: _Optional[int] = ..., messages: _Optional[int] = ..., chunk_uuid: _Optional[str] = ..., chunk_id: _Optional[int] = ..., chunks: _Optional[int] = ..., at_ms: _Optional[int] = ..., deliver_at_ms: _Optional[int] = ..., key_hash: _Optional[int] = ..., txn_coordinator: _Optional[int] = ..., txn_sequence: _Optional[int] = ..., source_ledger: _Optional[int] = ..., source_entry: _Optional[int] = ..., skipped: _Optional[int] = ...) -> None: ...

class EntriesAppended(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[EntryAppended]
    def __init__(self, entries: _Optional[_Iterable[_Union[EntryAppended, _Mapping]]] = ...) -> None: ...

class TopicEpochRaised(_message.Message):
    __slots__ = ("topic_epoch", "producer_name")
    TOPIC_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_NAME_FIELD_NUMBER: _ClassVar[int]
    topic_epoch: int
    producer_name: str
    def __init__(self, topic_epoch: _Optional[int] = ..., producer_name: _Optional[str] = ...) -> None: ...

class ProducerForgotten(_message.Message):
    __slots__ = ("producer",)
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    producer: int
    def __init__(self, producer: _Optional[int] = ...) -> None: ...

class TopicTerminated(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CompactionBegun(_message.Message):
    __slots__ = ("generation", "horizon", "at_ms")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    horizon: int
    at_ms: int
    def __init__(self, generation: _Optional[int] = ..., horizon: _Optional[int] = ..., at_ms: _Optional[int] = ...) -> None: ...

class CompactionPublished(_message.Message):
    __slots__ = ("generation", "entries", "at_ms")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    entries: int
    at_ms: int
    def __init__(self, generation: _Optional[int] = ..., entries: _Optional[int] = ..., at_ms: _Optional[int] = ...) -> None: ...

class CompactionSwept(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class EntryCompacted(_message.Message):
    __slots__ = ("offset", "messages", "chunk_uuid", "kept")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_UUID_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    offset: int
    messages: int
    chunk_uuid: str
    kept: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, offset: _Optional[int] = ..., messages: _Optional[int] = ..., chunk_uuid: _Optional[str] = ..., kept: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerationCompleted(_message.Message):
    __slots__ = ("horizon", "ledgers")
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    horizon: int
    ledgers: _containers.RepeatedCompositeFieldContainer[CompactedLedger]
    def __init__(self, horizon: _Optional[int] = ..., ledgers: _Optional[_Iterable[_Union[CompactedLedger, _Mapping]]] = ...) -> None: ...

class CompactedLedger(_message.Message):
    __slots__ = ("ledger_id", "first")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    first: int
    def __init__(self, ledger_id: _Optional[int] = ..., first: _Optional[int] = ...) -> None: ...

class SubscriptionCreated(_message.Message):
    __slots__ = ("name", "incarnation", "start_offset", "properties")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    start_offset: int
    properties: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., start_offset: _Optional[int] = ..., properties: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SubscriptionDeleted(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class SubscriptionSwept(_message.Message):
    __slots__ = ("incarnation",)
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    def __init__(self, incarnation: _Optional[int] = ...) -> None: ...

class TransactionEnded(_message.Message):
    __slots__ = ("coordinator", "sequence", "commit", "clusters", "alone")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    CLUSTERS_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    coordinator: int
    sequence: int
    commit: bool
    clusters: _containers.RepeatedScalarFieldContainer[str]
    alone: bool
    def __init__(self, coordinator: _Optional[int] = ..., sequence: _Optional[int] = ..., commit: bool = ..., clusters: _Optional[_Iterable[str]] = ..., alone: bool = ...) -> None: ...

class ParticipantsNamed(_message.Message):
    __slots__ = ("coordinator", "sequence", "clusters")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CLUSTERS_FIELD_NUMBER: _ClassVar[int]
    coordinator: int
    sequence: int
    clusters: _containers.RepeatedCompositeFieldContainer[ClusterParticipants]
    def __init__(self, coordinator: _Optional[int] = ..., sequence: _Optional[int] = ..., clusters: _Optional[_Iterable[_Union[ClusterParticipants, _Mapping]]] = ...) -> None: ...

class ClusterParticipants(_message.Message):
    __slots__ = ("cluster", "topics")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cluster: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ...) -> None: ...

class TransactionsReplicated(_message.Message):
    __slots__ = ("cluster", "numbers")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, cluster: _Optional[str] = ..., numbers: _Optional[_Iterable[int]] = ...) -> None: ...

class ForeignTransactionComplete(_message.Message):
    __slots__ = ("coordinator", "sequence", "cluster", "topics", "source_ledger", "source_entry")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LEDGER_FIELD_NUMBER: _ClassVar[int]
    SOURCE_ENTRY_FIELD_NUMBER: _ClassVar[int]
    coordinator: int
    sequence: int
    cluster: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    source_ledger: int
    source_entry: int
    def __init__(self, coordinator: _Optional[int] = ..., sequence: _Optional[int] = ..., cluster: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., source_ledger: _Optional[int] = ..., source_entry: _Optional[int] = ...) -> None: ...

class ForeignTransactionEnded(_message.Message):
    __slots__ = ("coordinator", "sequence", "commit", "over")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    coordinator: int
    sequence: int
    commit: bool
    over: bool
    def __init__(self, coordinator: _Optional[int] = ..., sequence: _Optional[int] = ..., commit: bool = ..., over: bool = ...) -> None: ...

class ForeignTransactionArrived(_message.Message):
    __slots__ = ("coordinator", "sequence", "topic", "topics")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    coordinator: int
    sequence: int
    topic: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, coordinator: _Optional[int] = ..., sequence: _Optional[int] = ..., topic: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ...) -> None: ...

class ForeignTransactionJudged(_message.Message):
    __slots__ = ("coordinator", "sequence", "commit", "topics")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    coordinator: int
    sequence: int
    commit: bool
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, coordinator: _Optional[int] = ..., sequence: _Optional[int] = ..., commit: bool = ..., topics: _Optional[_Iterable[str]] = ...) -> None: ...

class ForeignTransactionForgotten(_message.Message):
    __slots__ = ("coordinator", "sequence")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    coordinator: int
    sequence: int
    def __init__(self, coordinator: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class DelayedEntriesDue(_message.Message):
    __slots__ = ("until_ms",)
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    until_ms: int
    def __init__(self, until_ms: _Optional[int] = ...) -> None: ...

class EntriesTrimmed(_message.Message):
    __slots__ = ("ledgers", "at_ms")
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    ledgers: _containers.RepeatedCompositeFieldContainer[TrimmedLedger]
    at_ms: int
    def __init__(self, ledgers: _Optional[_Iterable[_Union[TrimmedLedger, _Mapping]]] = ..., at_ms: _Optional[int] = ...) -> None: ...

class EntriesSkipped(_message.Message):
    __slots__ = ("ranges", "at_ms")
    RANGES_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[SkippedRange]
    at_ms: int
    def __init__(self, ranges: _Optional[_Iterable[_Union[SkippedRange, _Mapping]]] = ..., at_ms: _Optional[int] = ...) -> None: ...

class EntriesUnskipped(_message.Message):
    __slots__ = ("ranges", "at_ms")
    RANGES_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[SkippedRange]
    at_ms: int
    def __init__(self, ranges: _Optional[_Iterable[_Union[SkippedRange, _Mapping]]] = ..., at_ms: _Optional[int] = ...) -> None: ...

class SkippedRange(_message.Message):
    __slots__ = ("first", "end")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    first: int
    end: int
    def __init__(self, first: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class LedgersUnlisted(_message.Message):
    __slots__ = ("ledger_ids",)
    LEDGER_IDS_FIELD_NUMBER: _ClassVar[int]
    ledger_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ledger_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class TrimmedLedger(_message.Message):
    __slots__ = ("ledger_id", "bytes")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    bytes: int
    def __init__(self, ledger_id: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class PartitionFenced(_message.Message):
    __slots__ = ("migration",)
    MIGRATION_FIELD_NUMBER: _ClassVar[int]
    migration: int
    def __init__(self, migration: _Optional[int] = ...) -> None: ...

class PartitionUnfenced(_message.Message):
    __slots__ = ("migration",)
    MIGRATION_FIELD_NUMBER: _ClassVar[int]
    migration: int
    def __init__(self, migration: _Optional[int] = ...) -> None: ...

class SubscriptionPropertiesSet(_message.Message):
    __slots__ = ("incarnation", "properties")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    properties: _containers.ScalarMap[str, str]
    def __init__(self, incarnation: _Optional[int] = ..., properties: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SubscriptionIdle(_message.Message):
    __slots__ = ("incarnation", "since_ms")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    since_ms: int
    def __init__(self, incarnation: _Optional[int] = ..., since_ms: _Optional[int] = ...) -> None: ...

class CursorCreated(_message.Message):
    __slots__ = ("start_offset",)
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    start_offset: int
    def __init__(self, start_offset: _Optional[int] = ...) -> None: ...

class EntriesAcked(_message.Message):
    __slots__ = ("ranges", "partial", "consumer", "cluster")
    RANGES_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedScalarFieldContainer[int]
    partial: _containers.RepeatedCompositeFieldContainer[PartialAck]
    consumer: int
    cluster: str
    def __init__(self, ranges: _Optional[_Iterable[int]] = ..., partial: _Optional[_Iterable[_Union[PartialAck, _Mapping]]] = ..., consumer: _Optional[int] = ..., cluster: _Optional[str] = ...) -> None: ...

class PartialAck(_message.Message):
    __slots__ = ("offset", "remaining")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    offset: int
    remaining: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, offset: _Optional[int] = ..., remaining: _Optional[_Iterable[int]] = ...) -> None: ...

class MarkDeleted(_message.Message):
    __slots__ = ("before_offset", "partial", "consumer", "reason")
    BEFORE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    before_offset: int
    partial: PartialAck
    consumer: int
    reason: str
    def __init__(self, before_offset: _Optional[int] = ..., partial: _Optional[_Union[PartialAck, _Mapping]] = ..., consumer: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class CursorReset(_message.Message):
    __slots__ = ("next_offset", "reason", "shared")
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    next_offset: int
    reason: str
    shared: bool
    def __init__(self, next_offset: _Optional[int] = ..., reason: _Optional[str] = ..., shared: bool = ...) -> None: ...

class EntriesDelivered(_message.Message):
    __slots__ = ("ranges",)
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ranges: _Optional[_Iterable[int]] = ...) -> None: ...

class DeliveriesReturned(_message.Message):
    __slots__ = ("ranges",)
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ranges: _Optional[_Iterable[int]] = ...) -> None: ...

class DeadLettersIntended(_message.Message):
    __slots__ = ("ranges", "first_sequence")
    RANGES_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedScalarFieldContainer[int]
    first_sequence: int
    def __init__(self, ranges: _Optional[_Iterable[int]] = ..., first_sequence: _Optional[int] = ...) -> None: ...

class DeadLettersMoved(_message.Message):
    __slots__ = ("ranges",)
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ranges: _Optional[_Iterable[int]] = ...) -> None: ...

class AckedInTransaction(_message.Message):
    __slots__ = ("coordinator", "sequence", "ranges", "partial", "consumer")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    coordinator: int
    sequence: int
    ranges: _containers.RepeatedScalarFieldContainer[int]
    partial: _containers.RepeatedCompositeFieldContainer[PendingPart]
    consumer: int
    def __init__(self, coordinator: _Optional[int] = ..., sequence: _Optional[int] = ..., ranges: _Optional[_Iterable[int]] = ..., partial: _Optional[_Iterable[_Union[PendingPart, _Mapping]]] = ..., consumer: _Optional[int] = ...) -> None: ...

class PendingPart(_message.Message):
    __slots__ = ("offset", "acknowledged", "messages")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    offset: int
    acknowledged: _containers.RepeatedScalarFieldContainer[int]
    messages: int
    def __init__(self, offset: _Optional[int] = ..., acknowledged: _Optional[_Iterable[int]] = ..., messages: _Optional[int] = ...) -> None: ...

class AckedBeforeInTransaction(_message.Message):
    __slots__ = ("coordinator", "sequence", "before_offset", "partial", "consumer")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    coordinator: int
    sequence: int
    before_offset: int
    partial: PartialAck
    consumer: int
    def __init__(self, coordinator: _Optional[int] = ..., sequence: _Optional[int] = ..., before_offset: _Optional[int] = ..., partial: _Optional[_Union[PartialAck, _Mapping]] = ..., consumer: _Optional[int] = ...) -> None: ...

class TransactionAcksEnded(_message.Message):
    __slots__ = ("coordinator", "sequence", "commit")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    coordinator: int
    sequence: int
    commit: bool
    def __init__(self, coordinator: _Optional[int] = ..., sequence: _Optional[int] = ..., commit: bool = ...) -> None: ...

class ProgressTaken(_message.Message):
    __slots__ = ("ranges", "partial", "delivered", "first_offset", "waiting")
    RANGES_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedScalarFieldContainer[int]
    partial: _containers.RepeatedCompositeFieldContainer[PartialAck]
    delivered: _containers.RepeatedScalarFieldContainer[int]
    first_offset: int
    waiting: _containers.RepeatedCompositeFieldContainer[ProgressWaiting]
    def __init__(self, ranges: _Optional[_Iterable[int]] = ..., partial: _Optional[_Iterable[_Union[PartialAck, _Mapping]]] = ..., delivered: _Optional[_Iterable[int]] = ..., first_offset: _Optional[int] = ..., waiting: _Optional[_Iterable[_Union[ProgressWaiting, _Mapping]]] = ...) -> None: ...

class ProgressWaiting(_message.Message):
    __slots__ = ("cluster", "came", "up_to", "ledgers")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    CAME_FIELD_NUMBER: _ClassVar[int]
    UP_TO_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    came: EntryPosition
    up_to: EntryPosition
    ledgers: _containers.RepeatedCompositeFieldContainer[LedgerProgress]
    def __init__(self, cluster: _Optional[str] = ..., came: _Optional[_Union[EntryPosition, _Mapping]] = ..., up_to: _Optional[_Union[EntryPosition, _Mapping]] = ..., ledgers: _Optional[_Iterable[_Union[LedgerProgress, _Mapping]]] = ...) -> None: ...

class LedgerProgress(_message.Message):
    __slots__ = ("ledger_id", "ranges", "partial", "delivered")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    ranges: _containers.RepeatedScalarFieldContainer[int]
    partial: _containers.RepeatedCompositeFieldContainer[PartialAck]
    delivered: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ledger_id: _Optional[int] = ..., ranges: _Optional[_Iterable[int]] = ..., partial: _Optional[_Iterable[_Union[PartialAck, _Mapping]]] = ..., delivered: _Optional[_Iterable[int]] = ...) -> None: ...

class EntryPosition(_message.Message):
    __slots__ = ("ledger_id", "entry_id")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ...) -> None: ...

class EntriesExpired(_message.Message):
    __slots__ = ("ranges", "reason")
    RANGES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    def __init__(self, ranges: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ...) -> None: ...

class CursorRestored(_message.Message):
    __slots__ = ("next_offset", "ranges", "partial", "reason", "shared")
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    next_offset: int
    ranges: _containers.RepeatedScalarFieldContainer[int]
    partial: _containers.RepeatedCompositeFieldContainer[PartialAck]
    reason: str
    shared: bool
    def __init__(self, next_offset: _Optional[int] = ..., ranges: _Optional[_Iterable[int]] = ..., partial: _Optional[_Iterable[_Union[PartialAck, _Mapping]]] = ..., reason: _Optional[str] = ..., shared: bool = ...) -> None: ...

class ConsumerAttached(_message.Message):
    __slots__ = ("consumer", "name", "at_ms", "address")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    consumer: int
    name: str
    at_ms: int
    address: str
    def __init__(self, consumer: _Optional[int] = ..., name: _Optional[str] = ..., at_ms: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class ConsumerDetached(_message.Message):
    __slots__ = ("consumer", "at_ms")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    consumer: int
    at_ms: int
    def __init__(self, consumer: _Optional[int] = ..., at_ms: _Optional[int] = ...) -> None: ...

class DeliveriesTraced(_message.Message):
    __slots__ = ("runs", "at_ms")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedScalarFieldContainer[int]
    at_ms: int
    def __init__(self, runs: _Optional[_Iterable[int]] = ..., at_ms: _Optional[int] = ...) -> None: ...

class EntriesAskedAgain(_message.Message):
    __slots__ = ("consumer", "ranges", "all", "at_ms")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    consumer: int
    ranges: _containers.RepeatedScalarFieldContainer[int]
    all: bool
    at_ms: int
    def __init__(self, consumer: _Optional[int] = ..., ranges: _Optional[_Iterable[int]] = ..., all: bool = ..., at_ms: _Optional[int] = ...) -> None: ...

class TransactionBegun(_message.Message):
    __slots__ = ("sequence", "owner", "at_ms", "timeout_ms", "series", "number")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    owner: str
    at_ms: int
    timeout_ms: int
    series: str
    number: int
    def __init__(self, sequence: _Optional[int] = ..., owner: _Optional[str] = ..., at_ms: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., series: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class PartitionsJoined(_message.Message):
    __slots__ = ("sequence", "topics")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sequence: _Optional[int] = ..., topics: _Optional[_Iterable[str]] = ...) -> None: ...

class SubscriptionsJoined(_message.Message):
    __slots__ = ("sequence", "subscriptions")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    subscriptions: _containers.RepeatedCompositeFieldContainer[SubscriptionName]
    def __init__(self, sequence: _Optional[int] = ..., subscriptions: _Optional[_Iterable[_Union[SubscriptionName, _Mapping]]] = ...) -> None: ...

class SubscriptionName(_message.Message):
    __slots__ = ("topic", "subscription")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ...) -> None: ...

class TransactionDecided(_message.Message):
    __slots__ = ("sequence", "commit", "timed_out", "at_ms")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    commit: bool
    timed_out: bool
    at_ms: int
    def __init__(self, sequence: _Optional[int] = ..., commit: bool = ..., timed_out: bool = ..., at_ms: _Optional[int] = ...) -> None: ...

class TransactionSpread(_message.Message):
    __slots__ = ("sequence", "clusters")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CLUSTERS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    clusters: _containers.RepeatedCompositeFieldContainer[ClusterParticipants]
    def __init__(self, sequence: _Optional[int] = ..., clusters: _Optional[_Iterable[_Union[ClusterParticipants, _Mapping]]] = ...) -> None: ...

class TransactionFinished(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class SeriesCommitted(_message.Message):
    __slots__ = ("series", "number", "sequences", "owner", "at_ms")
    SERIES_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    series: str
    number: int
    sequences: _containers.RepeatedScalarFieldContainer[int]
    owner: str
    at_ms: int
    def __init__(self, series: _Optional[str] = ..., number: _Optional[int] = ..., sequences: _Optional[_Iterable[int]] = ..., owner: _Optional[str] = ..., at_ms: _Optional[int] = ...) -> None: ...

class SeriesForgotten(_message.Message):
    __slots__ = ("series",)
    SERIES_FIELD_NUMBER: _ClassVar[int]
    series: str
    def __init__(self, series: _Optional[str] = ...) -> None: ...

class SchemaRegistered(_message.Message):
    __slots__ = ("version", "type", "name", "data", "properties", "identity", "strategy", "predecessor", "role", "at_ms")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    PREDECESSOR_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    version: int
    type: str
    name: str
    data: bytes
    properties: _containers.ScalarMap[str, str]
    identity: bytes
    strategy: str
    predecessor: int
    role: str
    at_ms: int
    def __init__(self, version: _Optional[int] = ..., type: _Optional[str] = ..., name: _Optional[str] = ..., data: _Optional[bytes] = ..., properties: _Optional[_Mapping[str, str]] = ..., identity: _Optional[bytes] = ..., strategy: _Optional[str] = ..., predecessor: _Optional[int] = ..., role: _Optional[str] = ..., at_ms: _Optional[int] = ...) -> None: ...

class SchemasDeleted(_message.Message):
    __slots__ = ("version", "forced", "role", "at_ms")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    version: int
    forced: bool
    role: str
    at_ms: int
    def __init__(self, version: _Optional[int] = ..., forced: bool = ..., role: _Optional[str] = ..., at_ms: _Optional[int] = ...) -> None: ...
