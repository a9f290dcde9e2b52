"""Durable, transactional publish-subscribe for Ray and Spark.

``velaray.Client("pulsar://host:6650")`` connects to a service. Inside Ray, ``velaray.connect()``
connects to the running one. ``velaray.aio`` has the same classes with coroutines. Names are loaded
on first use, since every Ray worker imports this module.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from velaray import moved

if TYPE_CHECKING:
    from velaray.client.admin import (
        Admin as Admin,
    )
    from velaray.client.auth import (
        Authentication as Authentication,
    )
    from velaray.client.auth import (
        AuthenticationTLS as AuthenticationTLS,
    )
    from velaray.client.auth import (
        AuthenticationToken as AuthenticationToken,
    )
    from velaray.client.encryption_keys import (
        CryptoKeyReader as CryptoKeyReader,
    )
    from velaray.client.encryption_keys import (
        EncryptionContext as EncryptionContext,
    )
    from velaray.client.encryption_keys import (
        EncryptionKey as EncryptionKey,
    )
    from velaray.client.encryption_keys import (
        EncryptionKeyInfo as EncryptionKeyInfo,
    )
    from velaray.client.encryption_keys import (
        EncryptionKeyReader as EncryptionKeyReader,
    )
    from velaray.client.enums import (
        BatchingType as BatchingType,
    )
    from velaray.client.enums import (
        CompressionType as CompressionType,
    )
    from velaray.client.enums import (
        ConsumerCryptoFailureAction as ConsumerCryptoFailureAction,
    )
    from velaray.client.enums import (
        ConsumerType as ConsumerType,
    )
    from velaray.client.enums import (
        InitialPosition as InitialPosition,
    )
    from velaray.client.enums import (
        KeySharedMode as KeySharedMode,
    )
    from velaray.client.enums import (
        PartitionsRoutingMode as PartitionsRoutingMode,
    )
    from velaray.client.enums import (
        ProducerAccessMode as ProducerAccessMode,
    )
    from velaray.client.enums import (
        ProducerCryptoFailureAction as ProducerCryptoFailureAction,
    )
    from velaray.client.enums import (
        RegexSubscriptionMode as RegexSubscriptionMode,
    )
    from velaray.client.enums import (
        Result as Result,
    )
    from velaray.client.enums import (
        TransactionState as TransactionState,
    )
    from velaray.client.exceptions import (
        AlreadyClosed as AlreadyClosed,
    )
    from velaray.client.exceptions import (
        AuthenticationError as AuthenticationError,
    )
    from velaray.client.exceptions import (
        AuthorizationError as AuthorizationError,
    )
    from velaray.client.exceptions import (
        BrokerMetadataError as BrokerMetadataError,
    )
    from velaray.client.exceptions import (
        BrokerPersistenceError as BrokerPersistenceError,
    )
    from velaray.client.exceptions import (
        ChecksumError as ChecksumError,
    )
    from velaray.client.exceptions import (
        ConnectError as ConnectError,
    )
    from velaray.client.exceptions import (
        ConsumerAssignError as ConsumerAssignError,
    )
    from velaray.client.exceptions import (
        ConsumerBusy as ConsumerBusy,
    )
    from velaray.client.exceptions import (
        ConsumerNotFound as ConsumerNotFound,
    )
    from velaray.client.exceptions import (
        ConsumerNotInitialized as ConsumerNotInitialized,
    )
    from velaray.client.exceptions import (
        CryptoError as CryptoError,
    )
    from velaray.client.exceptions import (
        CumulativeAcknowledgementNotAllowedError as CumulativeAcknowledgementNotAllowedError,
    )
    from velaray.client.exceptions import (
        ErrorGettingAuthenticationData as ErrorGettingAuthenticationData,
    )
    from velaray.client.exceptions import (
        IncompatibleSchema as IncompatibleSchema,
    )
    from velaray.client.exceptions import (
        Interrupted as Interrupted,
    )
    from velaray.client.exceptions import (
        InvalidConfiguration as InvalidConfiguration,
    )
    from velaray.client.exceptions import (
        InvalidMessage as InvalidMessage,
    )
    from velaray.client.exceptions import (
        InvalidTopicName as InvalidTopicName,
    )
    from velaray.client.exceptions import (
        InvalidTxnStatusError as InvalidTxnStatusError,
    )
    from velaray.client.exceptions import (
        InvalidUrl as InvalidUrl,
    )
    from velaray.client.exceptions import (
        LookupError as LookupError,
    )
    from velaray.client.exceptions import (
        MemoryBufferIsFull as MemoryBufferIsFull,
    )
    from velaray.client.exceptions import (
        MessageTooBig as MessageTooBig,
    )
    from velaray.client.exceptions import (
        NotAllowedError as NotAllowedError,
    )
    from velaray.client.exceptions import (
        NotAllStored as NotAllStored,
    )
    from velaray.client.exceptions import (
        NotConnected as NotConnected,
    )
    from velaray.client.exceptions import (
        OperationNotSupported as OperationNotSupported,
    )
    from velaray.client.exceptions import (
        ProducerBlockedQuotaExceededError as ProducerBlockedQuotaExceededError,
    )
    from velaray.client.exceptions import (
        ProducerBlockedQuotaExceededException as ProducerBlockedQuotaExceededException,
    )
    from velaray.client.exceptions import (
        ProducerBusy as ProducerBusy,
    )
    from velaray.client.exceptions import (
        ProducerFenced as ProducerFenced,
    )
    from velaray.client.exceptions import (
        ProducerNotInitialized as ProducerNotInitialized,
    )
    from velaray.client.exceptions import (
        ProducerQueueIsFull as ProducerQueueIsFull,
    )
    from velaray.client.exceptions import (
        PulsarException as PulsarException,
    )
    from velaray.client.exceptions import (
        ReadError as ReadError,
    )
    from velaray.client.exceptions import (
        ServiceUnitNotReady as ServiceUnitNotReady,
    )
    from velaray.client.exceptions import (
        SubscriptionNotFound as SubscriptionNotFound,
    )
    from velaray.client.exceptions import (
        Timeout as Timeout,
    )
    from velaray.client.exceptions import (
        TooManyLookupRequestException as TooManyLookupRequestException,
    )
    from velaray.client.exceptions import (
        TopicNotFound as TopicNotFound,
    )
    from velaray.client.exceptions import (
        TopicTerminated as TopicTerminated,
    )
    from velaray.client.exceptions import (
        TransactionConflict as TransactionConflict,
    )
    from velaray.client.exceptions import (
        TransactionCoordinatorNotFoundError as TransactionCoordinatorNotFoundError,
    )
    from velaray.client.exceptions import (
        TransactionHasOperationFailed as TransactionHasOperationFailed,
    )
    from velaray.client.exceptions import (
        TransactionNotFound as TransactionNotFound,
    )
    from velaray.client.exceptions import (
        UndecodableMessage as UndecodableMessage,
    )
    from velaray.client.exceptions import (
        UnknownError as UnknownError,
    )
    from velaray.client.exceptions import (
        UnsupportedVersionError as UnsupportedVersionError,
    )
    from velaray.client.exceptions import (
        VelarayError as VelarayError,
    )
    from velaray.client.interceptors import (
        ConsumerInterceptor as ConsumerInterceptor,
    )
    from velaray.client.interceptors import (
        ProducerInterceptor as ProducerInterceptor,
    )
    from velaray.client.message import (
        Message as Message,
    )
    from velaray.client.message import (
        OutgoingMessage as OutgoingMessage,
    )
    from velaray.client.message_id import (
        MessageId as MessageId,
    )
    from velaray.client.oauth2 import (
        AuthenticationOauth2 as AuthenticationOauth2,
    )
    from velaray.client.policies import (
        ConsumerBatchReceivePolicy as ConsumerBatchReceivePolicy,
    )
    from velaray.client.policies import (
        ConsumerDeadLetterPolicy as ConsumerDeadLetterPolicy,
    )
    from velaray.client.policies import (
        ConsumerKeySharedPolicy as ConsumerKeySharedPolicy,
    )
    from velaray.client.policies import (
        MultiplierRedeliveryBackoff as MultiplierRedeliveryBackoff,
    )
    from velaray.client.service_info import (
        AutoClusterFailover as AutoClusterFailover,
    )
    from velaray.client.service_info import (
        ServiceInfo as ServiceInfo,
    )
    from velaray.client.service_info import (
        ServiceInfoProvider as ServiceInfoProvider,
    )
    from velaray.client.tls import (
        TlsOptions as TlsOptions,
    )
    from velaray.cluster import (
        Cluster as Cluster,
    )
    from velaray.handles import (
        CoordinatorHandle as CoordinatorHandle,
    )
    from velaray.handles import (
        ReplicatorHandle as ReplicatorHandle,
    )
    from velaray.handles import (
        SchemaRegistryHandle as SchemaRegistryHandle,
    )
    from velaray.handles import (
        SubscriptionHandle as SubscriptionHandle,
    )
    from velaray.handles import (
        TopicHandle as TopicHandle,
    )
    from velaray.local import (
        LocalCluster as LocalCluster,
    )
    from velaray.ray_access import (
        connect as connect,
    )
    from velaray.ray_access import (
        coordinator_handle as coordinator_handle,
    )
    from velaray.ray_access import (
        handle as handle,
    )
    from velaray.ray_access import (
        replicator_handle as replicator_handle,
    )
    from velaray.ray_access import (
        schema_registry_handle as schema_registry_handle,
    )
    from velaray.ray_access import (
        service_url as service_url,
    )
    from velaray.ray_access import (
        subscription_handle as subscription_handle,
    )
    from velaray.schema import (
        BytesSchema as BytesSchema,
    )
    from velaray.starting import (
        ClusterError as ClusterError,
    )
    from velaray.sync.client import (
        Client as Client,
    )
    from velaray.sync.consumer import (
        Consumer as Consumer,
    )
    from velaray.sync.producer import (
        Producer as Producer,
    )
    from velaray.sync.reader import (
        Reader as Reader,
    )
    from velaray.sync.table_view import (
        TableView as TableView,
    )
    from velaray.sync.transaction import (
        Transaction as Transaction,
    )

_HOMES = {
    "velaray.client.admin": ("Admin",),
    "velaray.client.auth": ("Authentication", "AuthenticationTLS", "AuthenticationToken"),
    "velaray.client.oauth2": ("AuthenticationOauth2",),
    "velaray.sync.client": ("Client",),
    "velaray.sync.consumer": ("Consumer",),
    "velaray.client.encryption_keys": (
        "CryptoKeyReader",
        "EncryptionContext",
        "EncryptionKey",
        "EncryptionKeyInfo",
        "EncryptionKeyReader",
    ),
    "velaray.client.enums": (
        "BatchingType",
        "CompressionType",
        "ConsumerCryptoFailureAction",
        "ConsumerType",
        "InitialPosition",
        "KeySharedMode",
        "PartitionsRoutingMode",
        "ProducerAccessMode",
        "ProducerCryptoFailureAction",
        "RegexSubscriptionMode",
        "Result",
        "TransactionState",
    ),
    "velaray.client.exceptions": (
        "AlreadyClosed",
        "AuthenticationError",
        "AuthorizationError",
        "BrokerMetadataError",
        "BrokerPersistenceError",
        "ChecksumError",
        "ConnectError",
        "ConsumerAssignError",
        "ConsumerBusy",
        "ConsumerNotFound",
        "ConsumerNotInitialized",
        "CryptoError",
        "CumulativeAcknowledgementNotAllowedError",
        "ErrorGettingAuthenticationData",
        "IncompatibleSchema",
        "Interrupted",
        "InvalidConfiguration",
        "InvalidMessage",
        "InvalidTopicName",
        "InvalidTxnStatusError",
        "InvalidUrl",
        "LookupError",
        "MemoryBufferIsFull",
        "MessageTooBig",
        "NotAllStored",
        "NotAllowedError",
        "NotConnected",
        "OperationNotSupported",
        "ProducerBlockedQuotaExceededError",
        "ProducerBlockedQuotaExceededException",
        "ProducerBusy",
        "ProducerFenced",
        "ProducerNotInitialized",
        "ProducerQueueIsFull",
        "PulsarException",
        "ReadError",
        "ServiceUnitNotReady",
        "SubscriptionNotFound",
        "Timeout",
        "TooManyLookupRequestException",
        "TopicNotFound",
        "TopicTerminated",
        "TransactionConflict",
        "TransactionCoordinatorNotFoundError",
        "TransactionHasOperationFailed",
        "TransactionNotFound",
        "UndecodableMessage",
        "UnknownError",
        "UnsupportedVersionError",
        "VelarayError",
    ),
    "velaray.client.interceptors": ("ConsumerInterceptor", "ProducerInterceptor"),
    "velaray.client.message": ("Message", "OutgoingMessage"),
    "velaray.client.message_id": ("MessageId",),
    "velaray.client.policies": (
        "ConsumerBatchReceivePolicy",
        "ConsumerDeadLetterPolicy",
        "ConsumerKeySharedPolicy",
        "MultiplierRedeliveryBackoff",
    ),
    "velaray.sync.producer": ("Producer",),
    "velaray.handles": (
        "CoordinatorHandle",
        "ReplicatorHandle",
        "SchemaRegistryHandle",
        "SubscriptionHandle",
        "TopicHandle",
    ),
    "velaray.ray_access": (
        "connect",
        "coordinator_handle",
        "handle",
        "replicator_handle",
        "schema_registry_handle",
        "service_url",
        "subscription_handle",
    ),
    "velaray.sync.reader": ("Reader",),
    "velaray.schema": ("BytesSchema",),
    "velaray.client.service_info": ("AutoClusterFailover", "ServiceInfo", "ServiceInfoProvider"),
    "velaray.sync.table_view": ("TableView",),
    "velaray.client.tls": ("TlsOptions",),
    "velaray.cluster": ("Cluster",),
    "velaray.local": ("LocalCluster",),
    "velaray.starting": ("ClusterError",),
    "velaray.sync.transaction": ("Transaction",),
}
moved.install()
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is not None:
        value = getattr(import_module(home), name)
    elif name in ("aio", "exceptions", "schema"):
        return import_module(f"velaray.{name}")
    elif name == "__version__":
        value = import_module("importlib.metadata").version("velaray")
    else:
        raise AttributeError(f"module 'velaray' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF, "aio", "schema", "__version__"})
