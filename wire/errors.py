"""The errors of the protocol, and the error codes that Pulsar's clients know."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from velaray.events.portable import PortableError


class ServerError(IntEnum):
    """The codes of the protocol's ``ServerError``, with the protocol's own names."""

    UnknownError = 0
    MetadataError = 1
    PersistenceError = 2
    AuthenticationError = 3
    AuthorizationError = 4
    ConsumerBusy = 5
    ServiceNotReady = 6
    ProducerBlockedQuotaExceededError = 7
    ProducerBlockedQuotaExceededException = 8
    ChecksumError = 9
    UnsupportedVersionError = 10
    TopicNotFound = 11
    SubscriptionNotFound = 12
    ConsumerNotFound = 13
    TooManyRequests = 14
    TopicTerminatedError = 15
    ProducerBusy = 16
    InvalidTopicName = 17
    IncompatibleSchema = 18
    ConsumerAssignError = 19
    TransactionCoordinatorNotFound = 20
    InvalidTxnStatus = 21
    NotAllowedError = 22
    TransactionConflict = 23
    TransactionNotFound = 24
    ProducerFenced = 25


ENCRYPTION_REQUIRED_IN = "Encryption is required in"
"""How the refusal of a producer that doesn't encrypt begins, in Pulsar and here. Only this tells it
from other refusals with its code, `MetadataError`, after which another attempt may succeed."""


class WireError(PortableError):
    """A request that fails, or bytes that break the protocol: a code and a text for the peer."""

    def __init__(self, server_error: ServerError, message: str) -> None:
        super().__init__(message)
        self.server_error = server_error
        self.message = message

    def __str__(self) -> str:
        return f"{self.server_error.name}: {self.message}"


class FrameError(WireError):
    """A frame that can't be served. If ``fatal``, no later byte of the connection can be read."""

    fatal = False


class FrameTooLargeError(FrameError):
    """A frame that announces more bytes than this side accepts."""

    fatal = True

    def __init__(self, announced: int, limit: int) -> None:
        super().__init__(
            ServerError.NotAllowedError,
            f"a frame of {announced} bytes is over the limit of {limit}; send smaller messages",
        )


class TruncatedFrameError(FrameError):
    """A frame whose sizes contradict each other: its command doesn't fit in it."""

    fatal = True

    def __init__(self, size: int) -> None:
        super().__init__(
            ServerError.UnknownError, f"a frame of {size} bytes can't hold its command"
        )


class UnknownCommandError(FrameError):
    """A command of a type that this side doesn't know; the frame is skipped."""

    def __init__(self, command_type: int) -> None:
        super().__init__(
            ServerError.UnsupportedVersionError, f"command type {command_type} is not known here"
        )
        self.command_type = command_type


class MalformedCommandError(FrameError):
    """A command that can't be decoded or lacks a required part; the frame is skipped.

    ``request_id`` is known if at least that could be read.
    """

    def __init__(self, message: str, request_id: int | None = None) -> None:
        super().__init__(ServerError.UnknownError, message)
        self.request_id = request_id


class CorruptEntryError(FrameError):
    """The entry that came with ``command`` is damaged; the frame is skipped."""

    def __init__(self, message: str, command: Any) -> None:
        super().__init__(ServerError.ChecksumError, message)
        self.command = command


class MalformedEntryError(WireError):
    """An entry whose metadata or batch can't be read."""

    def __init__(self, message: str) -> None:
        super().__init__(ServerError.UnknownError, message)


class CompressionError(WireError):
    """A payload that can't be decompressed to the size that its metadata promises."""

    def __init__(self, message: str) -> None:
        super().__init__(ServerError.UnknownError, message)


class PeerSilentError(ConnectionError):
    """A peer that sent nothing, not even an answer to PING, for two keep-alive intervals."""


class PeerNotReadingError(ConnectionError):
    """A peer that read nothing of what waits for it for a whole keep-alive interval."""


class HandshakeError(ConnectionError):
    """A peer that didn't begin with CONNECT, or not in time."""


class TooMuchBufferedError(ConnectionError):
    """A connection that was closed because all connections together held too much memory."""
