"""The enumerations that users choose from; names and numbers are those of Pulsar's clients."""

from __future__ import annotations

from enum import IntEnum


class ConsumerType(IntEnum):
    """How the consumers of one subscription share its messages."""

    Exclusive = 0
    Shared = 1
    Failover = 2
    KeyShared = 3


class InitialPosition(IntEnum):
    """Where a subscription starts when it is new."""

    Latest = 0
    Earliest = 1


class CompressionType(IntEnum):
    """How a producer compresses payloads; consumers detect it from the entry."""

    NONE = 0
    LZ4 = 1
    ZLib = 2
    ZSTD = 3
    SNAPPY = 4


class PartitionsRoutingMode(IntEnum):
    """How a producer picks the partition of a message that has no key."""

    UseSinglePartition = 0
    RoundRobinDistribution = 1
    CustomPartition = 2


class ProducerAccessMode(IntEnum):
    """Whether a producer shares its topic with other producers."""

    Shared = 0
    Exclusive = 1
    WaitForExclusive = 2
    ExclusiveWithFencing = 3


class BatchingType(IntEnum):
    """How messages are batched: in order of sending, or one batch per key."""

    Default = 0
    KeyBased = 1


class KeySharedMode(IntEnum):
    """Whether the service or the consumer chooses the keys of a Key_Shared consumer."""

    AutoSplit = 0
    Sticky = 1


class RegexSubscriptionMode(IntEnum):
    """Which topics of the namespace a pattern is matched against."""

    PersistentOnly = 0
    NonPersistentOnly = 1
    AllTopics = 2


class ProducerCryptoFailureAction(IntEnum):
    """What to do with a message that can't be encrypted.

    FAIL: it fails with `CryptoError`. SEND: it is sent without encryption.
    """

    FAIL = 0
    SEND = 1


class ConsumerCryptoFailureAction(IntEnum):
    """What to do with an entry that can't be decrypted.

    FAIL: it isn't delivered and stays unacknowledged. DISCARD: it is acknowledged without delivery.
    CONSUME: it is delivered as one message whose payload is still encrypted.
    """

    FAIL = 0
    DISCARD = 1
    CONSUME = 2


class TransactionState(IntEnum):
    """The state of a transaction, as far as its client knows."""

    OPEN = 0
    COMMITTING = 1
    ABORTING = 2
    COMMITTED = 3
    ABORTED = 4
    ERROR = 5
    TIME_OUT = 6


class Result(IntEnum):
    """The outcome that a ``send_async`` callback gets; also returned by `VelarayError.error`."""

    Ok = 0
    UnknownError = 1
    InvalidConfiguration = 2
    Timeout = 3
    LookupError = 4
    ConnectError = 5
    ReadError = 6
    AuthenticationError = 7
    AuthorizationError = 8
    ErrorGettingAuthenticationData = 9
    BrokerMetadataError = 10
    BrokerPersistenceError = 11
    ChecksumError = 12
    ConsumerBusy = 13
    NotConnected = 14
    AlreadyClosed = 15
    InvalidMessage = 16
    ConsumerNotInitialized = 17
    ProducerNotInitialized = 18
    ProducerBusy = 19
    TooManyLookupRequestException = 20
    InvalidTopicName = 21
    InvalidUrl = 22
    ServiceUnitNotReady = 23
    OperationNotSupported = 24
    ProducerBlockedQuotaExceededError = 25
    ProducerBlockedQuotaExceededException = 26
    ProducerQueueIsFull = 27
    MessageTooBig = 28
    TopicNotFound = 29
    SubscriptionNotFound = 30
    ConsumerNotFound = 31
    UnsupportedVersionError = 32
    TopicTerminated = 33
    CryptoError = 34
    IncompatibleSchema = 35
    ConsumerAssignError = 36
    CumulativeAcknowledgementNotAllowedError = 37
    TransactionCoordinatorNotFoundError = 38
    InvalidTxnStatusError = 39
    NotAllowedError = 40
    TransactionConflict = 41
    TransactionNotFound = 42
    ProducerFenced = 43
    MemoryBufferIsFull = 44
    Interrupted = 45
