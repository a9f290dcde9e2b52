from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MarkersMessageIdData(_message.Message):
    __slots__ = ("ledger_id", "entry_id")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ...) -> None: ...

class ClusterMessageId(_message.Message):
    __slots__ = ("cluster", "message_id")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    message_id: MarkersMessageIdData
    def __init__(self, cluster: _Optional[str] = ..., message_id: _Optional[_Union[MarkersMessageIdData, _Mapping]] = ...) -> None: ...

class ReplicatedSubscriptionsSnapshotRequest(_message.Message):
    __slots__ = ("snapshot_id", "source_cluster")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_CLUSTER_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    source_cluster: str
    def __init__(self, snapshot_id: _Optional[str] = ..., source_cluster: _Optional[str] = ...) -> None: ...

class ReplicatedSubscriptionsSnapshotResponse(_message.Message):
    __slots__ = ("snapshot_id", "cluster")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    cluster: ClusterMessageId
    def __init__(self, snapshot_id: _Optional[str] = ..., cluster: _Optional[_Union[ClusterMessageId, _Mapping]] = ...) -> None: ...

class ReplicatedSubscriptionsSnapshot(_message.Message):
    __slots__ = ("snapshot_id", "local_message_id", "clusters")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    LOCAL_MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTERS_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    local_message_id: MarkersMessageIdData
    clusters: _containers.RepeatedCompositeFieldContainer[ClusterMessageId]
    def __init__(self, snapshot_id: _Optional[str] = ..., local_message_id: _Optional[_Union[MarkersMessageIdData, _Mapping]] = ..., clusters: _Optional[_Iterable[_Union[ClusterMessageId, _Mapping]]] = ...) -> None: ...

class ReplicatedSubscriptionsUpdate(_message.Message):
    __slots__ = ("subscription_name", "clusters")
    SUBSCRIPTION_NAME_FIELD_NUMBER: _ClassVar[int]
    CLUSTERS_FIELD_NUMBER: _ClassVar[int]
    subscription_name: str
    clusters: _containers.RepeatedCompositeFieldContainer[ClusterMessageId]
    def __init__(self, subscription_name: _Optional[str] = ..., clusters: _Optional[_Iterable[_Union[ClusterMessageId, _Mapping]]] = ...) -> None: ...

class EntryRange(_message.Message):
    __slots__ = ("ledger", "first_entry", "last_entry")
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    ledger: int
    first_entry: int
    last_entry: int
    def __init__(self, ledger: _Optional[int] = ..., first_entry: _Optional[int] = ..., last_entry: _Optional[int] = ...) -> None: ...

class PartlyAcked(_message.Message):
    __slots__ = ("ledger", "entry", "remaining")
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    ledger: int
    entry: int
    remaining: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ledger: _Optional[int] = ..., entry: _Optional[int] = ..., remaining: _Optional[_Iterable[int]] = ...) -> None: ...

class DeliveredInVain(_message.Message):
    __slots__ = ("entries", "times")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    entries: EntryRange
    times: int
    def __init__(self, entries: _Optional[_Union[EntryRange, _Mapping]] = ..., times: _Optional[int] = ...) -> None: ...

class OriginProgress(_message.Message):
    __slots__ = ("cluster", "up_to", "acked", "partial", "delivered")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    UP_TO_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    up_to: MarkersMessageIdData
    acked: _containers.RepeatedCompositeFieldContainer[EntryRange]
    partial: _containers.RepeatedCompositeFieldContainer[PartlyAcked]
    delivered: _containers.RepeatedCompositeFieldContainer[DeliveredInVain]
    def __init__(self, cluster: _Optional[str] = ..., up_to: _Optional[_Union[MarkersMessageIdData, _Mapping]] = ..., acked: _Optional[_Iterable[_Union[EntryRange, _Mapping]]] = ..., partial: _Optional[_Iterable[_Union[PartlyAcked, _Mapping]]] = ..., delivered: _Optional[_Iterable[_Union[DeliveredInVain, _Mapping]]] = ...) -> None: ...

class SubscriptionProgress(_message.Message):
    __slots__ = ("subscription", "properties", "origins")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    properties: _containers.ScalarMap[str, str]
    origins: _containers.RepeatedCompositeFieldContainer[OriginProgress]
    def __init__(self, subscription: _Optional[str] = ..., properties: _Optional[_Mapping[str, str]] = ..., origins: _Optional[_Iterable[_Union[OriginProgress, _Mapping]]] = ...) -> None: ...

class TransactionsComplete(_message.Message):
    __slots__ = ("transactions",)
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[TransactionComplete]
    def __init__(self, transactions: _Optional[_Iterable[_Union[TransactionComplete, _Mapping]]] = ...) -> None: ...

class TransactionComplete(_message.Message):
    __slots__ = ("coordinator", "sequence", "last_ledger", "last_entry", "topics")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_LEDGER_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    coordinator: int
    sequence: int
    last_ledger: int
    last_entry: int
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, coordinator: _Optional[int] = ..., sequence: _Optional[int] = ..., last_ledger: _Optional[int] = ..., last_entry: _Optional[int] = ..., topics: _Optional[_Iterable[str]] = ...) -> None: ...
