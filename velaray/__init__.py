"""Durable, transactional publish-subscribe for Ray and Spark.

``velaray.Client("pulsar://host:6650")`` connects to a service; inside Ray,
``velaray.connect()`` finds the running one by itself. ``velaray.aio`` has the same with
coroutines. Names are loaded when they're first used: every Ray worker imports this module.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from velaray.admin import (
        Admin as Admin,
    )
    from velaray.auth import (
        Authentication as Authentication,
    )
    from velaray.auth import (
        AuthenticationToken as AuthenticationToken,
    )
    from velaray.client import (
        Client as Client,
    )
    from velaray.consumer import (
        Consumer as Consumer,
    )
    from velaray.enums import (
        BatchingType as BatchingType,
    )
    from velaray.enums import (
        CompressionType as CompressionType,
    )
    from velaray.enums import (
        ConsumerCryptoFailureAction as ConsumerCryptoFailureAction,
    )
    from velaray.enums import (
        ConsumerType as ConsumerType,
    )
    from velaray.enums import (
        InitialPosition as InitialPosition,
    )
    from velaray.enums import (
        KeySharedMode as KeySharedMode,
    )
    from velaray.enums import (
        PartitionsRoutingMode as PartitionsRoutingMode,
    )
    from velaray.enums import (
        ProducerAccessMode as ProducerAccessMode,
    )
    from velaray.enums import (
        RegexSubscriptionMode as RegexSubscriptionMode,
    )
    from velaray.enums import (
        Result as Result,
    )
    from velaray.enums import (
        TransactionState as TransactionState,
    )
    from velaray.exceptions import (
        AlreadyClosed as AlreadyClosed,
    )
    from velaray.exceptions import (
        AuthenticationError as AuthenticationError,
    )
    from velaray.exceptions import (
        AuthorizationError as AuthorizationError,
    )
    from velaray.exceptions import (
        BrokerMetadataError as BrokerMetadataError,
    )
    from velaray.exceptions import (
        BrokerPersistenceError as BrokerPersistenceError,
    )
    from velaray.exceptions import (
        ChecksumError as ChecksumError,
    )
    from velaray.exceptions import (
        ConnectError as ConnectError,
    )
    from velaray.exceptions import (
        ConsumerAssignError as ConsumerAssignError,
    )
    from velaray.exceptions import (
        ConsumerBusy as ConsumerBusy,
    )
    from velaray.exceptions import (
        ConsumerNotFound as ConsumerNotFound,
    )
    from velaray.exceptions import (
        ConsumerNotInitialized as ConsumerNotInitialized,
    )
    from velaray.exceptions import (
        CryptoError as CryptoError,
    )
    from velaray.exceptions import (
        CumulativeAcknowledgementNotAllowedError as CumulativeAcknowledgementNotAllowedError,
    )
    from velaray.exceptions import (
        ErrorGettingAuthenticationData as ErrorGettingAuthenticationData,
    )
    from velaray.exceptions import (
        IncompatibleSchema as IncompatibleSchema,
    )
    from velaray.exceptions import (
        Interrupted as Interrupted,
    )
    from velaray.exceptions import (
        InvalidConfiguration as InvalidConfiguration,
    )
    from velaray.exceptions import (
        InvalidMessage as InvalidMessage,
    )
    from velaray.exceptions import (
        InvalidTopicName as InvalidTopicName,
    )
    from velaray.exceptions import (
        InvalidTxnStatusError as InvalidTxnStatusError,
    )
    from velaray.exceptions import (
        InvalidUrl as InvalidUrl,
    )
    from velaray.exceptions import (
        LookupError as LookupError,
    )
    from velaray.exceptions import (
        MemoryBufferIsFull as MemoryBufferIsFull,
    )
    from velaray.exceptions import (
        MessageTooBig as MessageTooBig,
    )
    from velaray.exceptions import (
        NotAllowedError as NotAllowedError,
    )
    from velaray.exceptions import (
        NotAllStored as NotAllStored,
    )
    from velaray.exceptions import (
        NotConnected as NotConnected,
    )
    from velaray.exceptions import (
        OperationNotSupported as OperationNotSupported,
    )
    from velaray.exceptions import (
        ProducerBlockedQuotaExceededError as ProducerBlockedQuotaExceededError,
    )
    from velaray.exceptions import (
        ProducerBlockedQuotaExceededException as ProducerBlockedQuotaExceededException,
    )
    from velaray.exceptions import (
        ProducerBusy as ProducerBusy,
    )
    from velaray.exceptions import (
        ProducerFenced as ProducerFenced,
    )
    from velaray.exceptions import (
        ProducerNotInitialized as ProducerNotInitialized,
    )
    from velaray.exceptions import (
        ProducerQueueIsFull as ProducerQueueIsFull,
    )
    from velaray.exceptions import (
        PulsarException as PulsarException,
    )
    from velaray.exceptions import (
        ReadError as ReadError,
    )
    from velaray.exceptions import (
        ServiceUnitNotReady as ServiceUnitNotReady,
    )
    from velaray.exceptions import (
        SubscriptionNotFound as SubscriptionNotFound,
    )
    from velaray.exceptions import (
        Timeout as Timeout,
    )
    from velaray.exceptions import (
        TooManyLookupRequestException as TooManyLookupRequestException,
    )
    from velaray.exceptions import (
        TopicNotFound as TopicNotFound,
    )
    from velaray.exceptions import (
        TopicTerminated as TopicTerminated,
    )
    from velaray.exceptions import (
        TransactionConflict as TransactionConflict,
    )
    from velaray.exceptions import (
        TransactionCoordinatorNotFoundError as TransactionCoordinatorNotFoundError,
    )
    from velaray.exceptions import (
        TransactionHasOperationFailed as TransactionHasOperationFailed,
    )
    from velaray.exceptions import (
        TransactionNotFound as TransactionNotFound,
    )
    from velaray.exceptions import (
        UndecodableMessage as UndecodableMessage,
    )
    from velaray.exceptions import (
        UnknownError as UnknownError,
    )
    from velaray.exceptions import (
        UnsupportedVersionError as UnsupportedVersionError,
    )
    from velaray.exceptions import (
        VelarayError as VelarayError,
    )
    from velaray.interceptors import (
        ConsumerInterceptor as ConsumerInterceptor,
    )
    from velaray.interceptors import (
        ProducerInterceptor as ProducerInterceptor,
    )
    from velaray.message import (
        Message as Message,
    )
    from velaray.message import (
        OutgoingMessage as OutgoingMessage,
    )
    from velaray.message_id import (
        MessageId as MessageId,
    )
    from velaray.policies import (
        ConsumerBatchReceivePolicy as ConsumerBatchReceivePolicy,
    )
    from velaray.policies import (
        ConsumerDeadLetterPolicy as ConsumerDeadLetterPolicy,
    )
    from velaray.policies import (
        ConsumerKeySharedPolicy as ConsumerKeySharedPolicy,
    )
    from velaray.policies import (
        MultiplierRedeliveryBackoff as MultiplierRedeliveryBackoff,
    )
    from velaray.producer import (
        Producer as Producer,
    )
    from velaray.ray_access import (
        connect as connect,
    )
    from velaray.ray_access import (
        handle as handle,
    )
    from velaray.ray_access import (
        service_url as service_url,
    )
    from velaray.reader import (
        Reader as Reader,
    )
    from velaray.schema import (
        BytesSchema as BytesSchema,
    )
    from velaray.service_info import (
        AutoClusterFailover as AutoClusterFailover,
    )
    from velaray.service_info import (
        ServiceInfo as ServiceInfo,
    )
    from velaray.service_info import (
        ServiceInfoProvider as ServiceInfoProvider,
    )
    from velaray.table_view import (
        TableView as TableView,
    )
    from velaray.topology.cluster import (
        Cluster as Cluster,
    )
    from velaray.topology.cluster import (
        ClusterError as ClusterError,
    )
    from velaray.transaction import (
        Transaction as Transaction,
    )

_HOMES = {
    "velaray.admin": ("Admin",),
    "velaray.auth": ("Authentication", "AuthenticationToken"),
    "velaray.client": ("Client",),
    "velaray.consumer": ("Consumer",),
    "velaray.enums": (
        "BatchingType",
        "CompressionType",
        "ConsumerCryptoFailureAction",
        "ConsumerType",
        "InitialPosition",
        "KeySharedMode",
        "PartitionsRoutingMode",
        "ProducerAccessMode",
        "RegexSubscriptionMode",
        "Result",
        "TransactionState",
    ),
    "velaray.exceptions": (
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
    "velaray.interceptors": ("ConsumerInterceptor", "ProducerInterceptor"),
    "velaray.message": ("Message", "OutgoingMessage"),
    "velaray.message_id": ("MessageId",),
    "velaray.policies": (
        "ConsumerBatchReceivePolicy",
        "ConsumerDeadLetterPolicy",
        "ConsumerKeySharedPolicy",
        "MultiplierRedeliveryBackoff",
    ),
    "velaray.producer": ("Producer",),
    "velaray.ray_access": ("connect", "handle", "service_url"),
    "velaray.reader": ("Reader",),
    "velaray.schema": ("BytesSchema",),
    "velaray.service_info": ("AutoClusterFailover", "ServiceInfo", "ServiceInfoProvider"),
    "velaray.table_view": ("TableView",),
    "velaray.topology.cluster": ("Cluster", "ClusterError"),
    "velaray.transaction": ("Transaction",),
}
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
