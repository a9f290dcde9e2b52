"""Handles of a cluster's actors for Ray programs: calls that return object references.

``handle.publish.remote(b"...")`` is a call as to any Ray actor. ``ray.get`` of its reference
returns the result, or raises the client's errors (`velaray.exceptions`). If the process that serves
the handles dies during a call, it raises Ray's ``RayActorError``, and the outcome is unknown. An
argument may be an object reference. Handles can be passed to other tasks and actors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    from ray import ObjectRef

    from velaray.client.message import Message
    from velaray.client.message_id import MessageId
    from velaray.client.schema.base import Schema
    from velaray.events.ids import TransactionId

P = ParamSpec("P")
R = TypeVar("R")


class _Call(Generic[P, R]):
    def __init__(self, handle: Handle, method: str) -> None:
        self._handle = handle
        self._method = method

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> ObjectRef[R]:
        """Call the method; returns the object reference of its result."""
        result: ObjectRef[R] = self._handle.invoke(self._method, *args, **kwargs)
        return result


class _Method(Generic[P, R]):
    """A method that runs in the actor that serves the handles."""

    def __init__(self, declared: Callable[Concatenate[Any, P], R]) -> None:
        self.declared = declared
        self.__doc__ = declared.__doc__

    def __get__(self, handle: Handle, owner: type[Handle]) -> _Call[P, R]:
        return _Call(handle, self.declared.__name__)


class Handle:
    """Base of the handles."""

    _KIND: str

    def __init__(self, actor: Any, *target: Any) -> None:
        """``actor`` serves the handles of a cluster; ``target`` says what this one is of."""
        self._actor = actor
        self._target = target

    def invoke(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method by name; one that this kind of handle doesn't have is refused there."""
        return self._actor.invoke.remote(self._KIND, self._target, method, *args, **kwargs)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            known = [each for each, one in vars(type(self)).items() if isinstance(one, _Method)]
            raise AttributeError(
                f"a {self._KIND} handle has no {name!r}: it has {', '.join(known)}"
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(map(repr, self._target))}>"


class TopicHandle(Handle):
    """A topic, or one partition of it. Made by `velaray.handle`."""

    _KIND = "topic"

    @_Method
    def publish(
        self,
        content: Any,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_timestamp: int | None = None,
        deliver_after: timedelta | None = None,
        schema: Schema[Any] | None = None,
        txn: TransactionId | None = None,
    ) -> MessageId:
        """Publish one message; it is stored durably when the reference resolves.

        ``content`` is bytes, None (a tombstone) or a value for ``schema``. Checks and errors are
        those of `velaray.aio.Producer.send`. Calls that run at the same time are stored in any
        order. ``txn`` is what `CoordinatorHandle.begin` returned.
        """
        raise NotImplementedError

    @_Method
    def publish_many(
        self, contents: Any, keys: Any = None, *, txn: TransactionId | None = None
    ) -> list[MessageId]:
        """Publish many messages in order, as `velaray.aio.Producer.send_many`; all of them are
        stored durably when the reference resolves."""
        raise NotImplementedError

    @_Method
    def stats(self) -> dict[str, dict[str, Any]]:
        """Counters of the log, its producers and its subscriptions, by partition."""
        raise NotImplementedError

    @_Method
    def describe(self) -> dict[str, Any]:
        """The full name, the names of the ``partitions`` (its own if it has none), the
        ``properties``, and the names of the durable ``subscriptions``."""
        raise NotImplementedError


class SubscriptionHandle(Handle):
    """A Shared subscription. Made by `velaray.subscription_handle`.

    All handles of a subscription with the same acknowledgement timeout share one consumer in the
    actor that serves the handles. A message that isn't acknowledged within the timeout of the call
    that received it is redelivered, whatever has become of the caller. All of them are redelivered
    when that actor dies, after `close`, and when the consumer wasn't used for the timeout.
    """

    _KIND = "subscription"

    @_Method
    def receive(self, max_messages: int = 100, timeout_s: float = 10.0) -> list[Message[bytes]]:
        """Receive up to ``max_messages``, as soon as there is one; none within ``timeout_s``
        seconds is an empty list. The subscription is created if it doesn't exist."""
        raise NotImplementedError

    @_Method
    def acknowledge(
        self, messages: Sequence[Message[Any] | MessageId], *, txn: TransactionId | None = None
    ) -> None:
        """Acknowledge messages or message ids, such as the list that `receive` returned.

        The acknowledgement is durable when the reference resolves: no crash causes a redelivery
        then. An acknowledgement in a transaction (``txn``) counts when that is committed.
        """
        raise NotImplementedError

    @_Method
    def close(self) -> None:
        """Close the consumer: unacknowledged messages are redelivered at once."""
        raise NotImplementedError

    @_Method
    def describe(self) -> dict[str, dict[str, Any]]:
        """Cursor, consumers and the reasons for held-back entries, by partition. Raises
        `SubscriptionNotFound`."""
        raise NotImplementedError


class CoordinatorHandle(Handle):
    """A transaction coordinator. Made by `velaray.coordinator_handle`.

    Its transactions live in the actor that serves the handles: if that actor dies, they are aborted
    by their timeout, and their ids raise `TransactionNotFound`.
    """

    _KIND = "coordinator"

    @_Method
    def begin(self, timeout_s: float = 60.0) -> TransactionId:
        """Begin a transaction, which is aborted after ``timeout_s`` seconds; returns its id."""
        raise NotImplementedError

    @_Method
    def commit(self, txn: TransactionId) -> None:
        """Commit, once the calls that the caller has made in the transaction have ended. Raises
        `TransactionHasOperationFailed` if one of them failed; it is aborted then."""
        raise NotImplementedError

    @_Method
    def abort(self, txn: TransactionId) -> None:
        """Abort: its messages and acknowledgements never take effect."""
        raise NotImplementedError

    @_Method
    def describe(self) -> dict[str, Any]:
        """Counts of open and ended transactions, and the newest sequence number."""
        raise NotImplementedError


class SchemaRegistryHandle(Handle):
    """The schema registry of a topic. Made by `velaray.schema_registry_handle`."""

    _KIND = "schema registry"

    @_Method
    def get(self, version: int | None = None) -> dict[str, Any] | None:
        """A version, deleted or not, or the latest one; None if there is none."""
        raise NotImplementedError

    @_Method
    def versions(self) -> list[dict[str, Any]]:
        """All versions that aren't deleted, oldest first."""
        raise NotImplementedError

    @_Method
    def describe(self) -> dict[str, Any]:
        """The full name of the topic, the numbers of the ``versions``, and the ``policies``."""
        raise NotImplementedError


class ReplicatorHandle(Handle):
    """The replicators of a topic to another cluster. Made by `velaray.replicator_handle`."""

    _KIND = "replicator"

    @_Method
    def describe(self) -> dict[str, dict[str, Any]]:
        """State and backlog, by partition; empty if nothing is replicated to that cluster."""
        raise NotImplementedError
