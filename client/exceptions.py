"""Every error that velaray's client raises: one class per cause.

Class names are those of Pulsar's Python client. All derive from `VelarayError`. `PulsarException`
is another name of it, so that code written for Pulsar's client keeps working.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, ClassVar

from velaray.client.enums import Result
from velaray.events.portable import PortableError

if TYPE_CHECKING:
    from velaray.client.message_id import MessageId
    from velaray.client.sent import SentBatch


class VelarayError(PortableError):
    """Base of all errors of the client. ``str(error)`` describes the error and the remedy."""

    result: ClassVar[Result] = Result.UnknownError

    def error(self) -> Result:
        """The `Result` code that Pulsar's clients use for this cause."""
        return self.result


PulsarException = VelarayError


class UnknownError(VelarayError):
    """The service reported a failure that has no class of its own."""


class InvalidConfiguration(VelarayError):
    """An argument, or a combination of arguments, that can't work."""

    result = Result.InvalidConfiguration


class Timeout(VelarayError, builtins.TimeoutError):
    """The operation didn't finish in time; whether it took effect is unknown."""

    result = Result.Timeout


class LookupError(VelarayError, builtins.LookupError):
    """No server could be found for the topic."""

    result = Result.LookupError


class ConnectError(VelarayError, builtins.ConnectionError):
    """No connection could be made to the service."""

    result = Result.ConnectError


class ReadError(VelarayError):
    """Data from a server could not be read."""

    result = Result.ReadError


class AuthenticationError(VelarayError):
    """The service refused the credentials."""

    result = Result.AuthenticationError


class AuthorizationError(VelarayError):
    """The credentials don't allow this."""

    result = Result.AuthorizationError


class ErrorGettingAuthenticationData(VelarayError):
    """The token supplier failed to give a token."""

    result = Result.ErrorGettingAuthenticationData


class BrokerMetadataError(VelarayError):
    """The service could not read or write its metadata."""

    result = Result.BrokerMetadataError


class BrokerPersistenceError(VelarayError):
    """The service could not store the data; nothing was stored."""

    result = Result.BrokerPersistenceError


class ChecksumError(VelarayError):
    """A message arrived damaged and was refused."""

    result = Result.ChecksumError


class ConsumerBusy(VelarayError):
    """The subscription is taken by another consumer or another type."""

    result = Result.ConsumerBusy


class NotConnected(VelarayError):
    """There is no connection at the moment."""

    result = Result.NotConnected


class AlreadyClosed(VelarayError):
    """The client, producer, consumer or reader was closed."""

    result = Result.AlreadyClosed


class InvalidMessage(VelarayError):
    """The message or message id can't be used here."""

    result = Result.InvalidMessage


class UndecodableMessage(VelarayError):
    """A message's value can't be decoded: its payload doesn't fit the schema.

    ``reason`` is the cause. ``topic``, ``message_id`` and ``schema_version`` (None: no version)
    identify the message, unless a schema's method was called directly.
    """

    result = Result.InvalidMessage

    def __init__(
        self,
        reason: str,
        topic: str = "",
        message_id: MessageId | None = None,
        schema_version: int | None = None,
    ) -> None:
        self.reason = reason
        self.topic = topic
        self.message_id = message_id
        self.schema_version = schema_version
        which = "" if message_id is None else f"{topic}: message {message_id}"
        if which and schema_version is not None:
            which += f" (schema version {schema_version})"
        super().__init__(f"{which} can't be decoded: {reason}" if which else reason)

    def of(self, topic: str, message_id: MessageId, version: int | None) -> UndecodableMessage:
        """Return the same error with the identity of this message."""
        return UndecodableMessage(self.reason, topic, message_id, version)


class ConsumerNotInitialized(VelarayError):
    """The consumer was never set up."""

    result = Result.ConsumerNotInitialized


class ProducerNotInitialized(VelarayError):
    """The producer was never set up."""

    result = Result.ProducerNotInitialized


class ProducerBusy(VelarayError):
    """A producer of this name, or an exclusive one, is connected."""

    result = Result.ProducerBusy


class TooManyLookupRequestException(VelarayError):
    """The service has too many lookups at once."""

    result = Result.TooManyLookupRequestException


class InvalidTopicName(VelarayError):
    """The topic name doesn't follow the rules."""

    result = Result.InvalidTopicName


class InvalidUrl(VelarayError):
    """The service URL can't be used."""

    result = Result.InvalidUrl


class ServiceUnitNotReady(VelarayError):
    """The topic is moving or starting; a retry helps."""

    result = Result.ServiceUnitNotReady


class OperationNotSupported(VelarayError):
    """This velaray release doesn't support the operation."""

    result = Result.OperationNotSupported


class ProducerBlockedQuotaExceededError(VelarayError):
    """The backlog quota is used up; sends are held."""

    result = Result.ProducerBlockedQuotaExceededError


class ProducerBlockedQuotaExceededException(VelarayError):
    """The backlog quota is used up; sends are refused."""

    result = Result.ProducerBlockedQuotaExceededException


class ProducerQueueIsFull(VelarayError):
    """`max_pending_messages` sends already wait for receipts."""

    result = Result.ProducerQueueIsFull


class MessageTooBig(VelarayError):
    """The message exceeds the service's limit and chunking is off."""

    result = Result.MessageTooBig


class TopicNotFound(VelarayError):
    """The topic doesn't exist."""

    result = Result.TopicNotFound


class SubscriptionNotFound(VelarayError):
    """The subscription doesn't exist."""

    result = Result.SubscriptionNotFound


class ConsumerNotFound(VelarayError):
    """The service doesn't know this consumer, or no longer."""

    result = Result.ConsumerNotFound


class UnsupportedVersionError(VelarayError):
    """Client and service have no protocol version in common."""

    result = Result.UnsupportedVersionError


class TopicTerminated(VelarayError):
    """The topic was terminated and takes no more messages."""

    result = Result.TopicTerminated


class CryptoError(VelarayError):
    """Encryption or decryption failed."""

    result = Result.CryptoError


class IncompatibleSchema(VelarayError):
    """The topic's schema rules refuse this schema."""

    result = Result.IncompatibleSchema


class ConsumerAssignError(VelarayError):
    """The consumer's key ranges can't be assigned."""

    result = Result.ConsumerAssignError


class CumulativeAcknowledgementNotAllowedError(VelarayError):
    """Cumulative acks need an Exclusive or Failover consumer."""

    result = Result.CumulativeAcknowledgementNotAllowedError


class TransactionCoordinatorNotFoundError(VelarayError):
    """The transaction coordinator can't be found."""

    result = Result.TransactionCoordinatorNotFoundError


class InvalidTxnStatusError(VelarayError):
    """The transaction is not in a state that allows this."""

    result = Result.InvalidTxnStatusError


class NotAllowedError(VelarayError):
    """The service's rules forbid this."""

    result = Result.NotAllowedError


class TransactionConflict(VelarayError):
    """Another transaction holds this message."""

    result = Result.TransactionConflict


class TransactionNotFound(VelarayError):
    """The transaction is unknown."""

    result = Result.TransactionNotFound


class TransactionHasOperationFailed(VelarayError):
    """An operation in the transaction failed: it was aborted instead of committed."""


class ProducerFenced(VelarayError):
    """Another producer took over the topic; this one is permanently closed."""

    result = Result.ProducerFenced


class MemoryBufferIsFull(VelarayError):
    """The client's memory limit is reached."""

    result = Result.MemoryBufferIsFull


class Interrupted(VelarayError):
    """The operation was interrupted."""

    result = Result.Interrupted


class NotAllStored(VelarayError):
    """A ``send_many`` stored some of its values and not others; ``__cause__`` says why.

    The first `durable` values and all values in `stored` are stored. The others are not stored. If
    the cause is a `Timeout` or `AlreadyClosed`, it is unknown whether the others are stored.
    """

    def __init__(self, text: str, stored: SentBatch, durable: int) -> None:
        super().__init__(text)
        self.stored = stored
        self.durable = durable

    def error(self) -> Result:
        """The code of the cause."""
        cause = self.__cause__
        return cause.error() if isinstance(cause, VelarayError) else self.result


_BY_SERVER_CODE: tuple[type[VelarayError], ...] = (
    UnknownError,
    BrokerMetadataError,
    BrokerPersistenceError,
    AuthenticationError,
    AuthorizationError,
    ConsumerBusy,
    ServiceUnitNotReady,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    ChecksumError,
    UnsupportedVersionError,
    TopicNotFound,
    SubscriptionNotFound,
    ConsumerNotFound,
    TooManyLookupRequestException,
    TopicTerminated,
    ProducerBusy,
    InvalidTopicName,
    IncompatibleSchema,
    ConsumerAssignError,
    TransactionCoordinatorNotFoundError,
    InvalidTxnStatusError,
    NotAllowedError,
    TransactionConflict,
    TransactionNotFound,
    ProducerFenced,
)


def from_server(code: int, message: str) -> VelarayError:
    """Return the exception for a wire ``ServerError`` code; its text contains an unknown code."""
    if 0 <= code < len(_BY_SERVER_CODE):
        return _BY_SERVER_CODE[code](message)
    return UnknownError(f"server error {code}: {message}")
