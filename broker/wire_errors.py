"""The wire's error codes for refusals of actors."""

from __future__ import annotations

from velaray.actors.machine import Reason
from velaray.actors.partition.ledger_table import NoSuchEntryError
from velaray.events.ids import InvalidNameError
from velaray.journal.errors import CorruptJournal, StorageFull
from velaray.topology.rpc import RemoteError
from velaray.wire import pulsar_pb2 as pb

_CODES = {
    Reason.NOT_FOUND: pb.TopicNotFound,
    Reason.ALREADY_EXISTS: pb.MetadataError,
    Reason.INVALID: pb.NotAllowedError,
    Reason.CONFLICT: pb.MetadataError,
    Reason.BUSY: pb.ConsumerBusy,
    Reason.FENCED: pb.ProducerFenced,
    Reason.TERMINATED: pb.TopicTerminatedError,
    Reason.NOT_ALLOWED: pb.NotAllowedError,
    Reason.NOT_EMPTY: pb.NotAllowedError,
    Reason.UNAVAILABLE: pb.ServiceNotReady,
    Reason.ELSEWHERE: pb.ServiceNotReady,  # clients look up again
    Reason.STORAGE_FULL: pb.PersistenceError,
    Reason.NO_SUBSCRIPTION: pb.SubscriptionNotFound,
    Reason.QUOTA_HELD: pb.ProducerBlockedQuotaExceededError,
    Reason.QUOTA_EXCEEDED: pb.ProducerBlockedQuotaExceededException,
    Reason.UNASSIGNABLE: pb.ConsumerAssignError,
    Reason.INCOMPATIBLE_SCHEMA: pb.IncompatibleSchema,
    Reason.INVALID_SCHEMA: pb.IncompatibleSchema,  # other codes make clients try again
}

RETRIABLE = frozenset((pb.UnknownError, pb.MetadataError, pb.PersistenceError, pb.ServiceNotReady))
"""The codes above after which the client for C++ subscribes again."""


class TooManyRequestsError(Exception):
    """A client asks for more than it may at a time; it may ask again later."""


def code_of_reason(reason: Reason) -> pb.ServerError:
    """The wire's code for a refusal."""
    return _CODES[reason]


def code_of(error: Exception) -> pb.ServerError:
    """The wire's code for an error of a call; ServiceNotReady for transient errors."""
    if isinstance(error, InvalidNameError):
        return pb.InvalidTopicName
    if isinstance(error, RemoteError):
        try:
            return _CODES[Reason(error.kind)]
        except ValueError:
            return pb.UnknownError
    if isinstance(error, TooManyRequestsError):
        return pb.TooManyRequests
    if isinstance(error, NoSuchEntryError):
        return pb.ServiceNotReady  # it was trimmed during the read
    if isinstance(error, (StorageFull, CorruptJournal)):
        return pb.PersistenceError
    return pb.ServiceNotReady
