"""How refusals of actors look on the wire."""

from __future__ import annotations

from velaray.actors.machine import Reason
from velaray.events.ids import InvalidNameError
from velaray.journal.errors import StorageFull
from velaray.topology.links import RemoteError
from velaray.wire.errors import ServerError

_CODES = {
    Reason.NOT_FOUND: ServerError.TopicNotFound,
    Reason.ALREADY_EXISTS: ServerError.MetadataError,
    Reason.INVALID: ServerError.NotAllowedError,
    Reason.CONFLICT: ServerError.MetadataError,
    Reason.BUSY: ServerError.ConsumerBusy,
    Reason.FENCED: ServerError.ProducerFenced,
    Reason.TERMINATED: ServerError.TopicTerminatedError,
    Reason.NOT_ALLOWED: ServerError.NotAllowedError,
    Reason.NOT_EMPTY: ServerError.NotAllowedError,
    Reason.UNAVAILABLE: ServerError.ServiceNotReady,
    Reason.STORAGE_FULL: ServerError.PersistenceError,
}


def code_of_reason(reason: Reason) -> ServerError:
    """The wire's code for a refusal."""
    return _CODES[reason]


def code_of(error: Exception) -> ServerError:
    """The wire's code for an error of a call; what may pass by itself is ServiceNotReady."""
    if isinstance(error, InvalidNameError):
        return ServerError.InvalidTopicName
    if isinstance(error, RemoteError):
        try:
            return _CODES[Reason(error.kind)]
        except ValueError:
            return ServerError.UnknownError
    if isinstance(error, StorageFull):
        return ServerError.PersistenceError
    return ServerError.ServiceNotReady
