"""The right that each command of the protocol needs, and how a client without it is refused.

A command without a row is refused. `velaray.admin.authorisation` has the rows of the routes of the
admin interface and of the calls of handles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from velaray.actors.catalog.state import Scope
from velaray.broker.authorisation.grants import Demand, Right
from velaray.broker.coordinator.coordinators import stands_for_coordinators
from velaray.events.ids import TopicName
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Send

Demands = Callable[[Any], Iterator[Demand]]
Refusal = Callable[[Any, "pb.ServerError", str], Any]
"""Makes the answer to a command from an error and its text."""


def _error(command: Any, code: pb.ServerError, text: str) -> pb.CommandError:
    return pb.CommandError(request_id=command.request_id, error=code, message=text)


def _answer(kind: Any, **more: Any) -> Refusal:
    """A refusal by the command's own answer, whose fields are ``error`` and ``message``."""

    def refuse(command: Any, code: pb.ServerError, text: str) -> Any:
        return kind(request_id=command.request_id, error=code, message=text, **more)

    return refuse


def _schema_answer(kind: Any) -> Refusal:
    def refuse(command: Any, code: pb.ServerError, text: str) -> Any:
        return kind(request_id=command.request_id, error_code=code, error_message=text)

    return refuse


def _transaction_answer(kind: Any) -> Refusal:
    def refuse(command: Any, code: pb.ServerError, text: str) -> Any:
        return kind(
            request_id=command.request_id,
            txnid_most_bits=command.txnid_most_bits,
            txnid_least_bits=command.txnid_least_bits,
            error=code,
            message=text,
        )

    return refuse


def no_demands(command: Any) -> Iterator[Demand]:
    """The demands of a command that needs no right in a topic or namespace."""
    return iter(())


def _of_topic(right: Right, text: str, subscription: str = "") -> Demand:
    return Demand(right, Scope.of_topic(TopicName.parse(text)), subscription)


def _lookup(command: Any) -> Iterator[Demand]:
    # Every client may find the transaction coordinators. Other topics of the system need a right
    # there, which superusers have.
    if not stands_for_coordinators(TopicName.parse(command.topic)):
        yield _of_topic(Right.LOOKUP, command.topic)


def _produce(command: pb.CommandProducer) -> Iterator[Demand]:
    yield _of_topic(Right.PRODUCE, command.topic)
    if command.initial_subscription_name:
        yield _of_topic(Right.CONSUME, command.topic, command.initial_subscription_name)


def _subscribe(command: pb.CommandSubscribe) -> Iterator[Demand]:
    yield _of_topic(Right.CONSUME, command.topic, command.subscription)


def _list(command: pb.CommandGetTopicsOfNamespace) -> Iterator[Demand]:
    tenant, _, namespace = command.namespace.partition("/")
    yield Demand(Right.LOOKUP, Scope(tenant, namespace))


def _register_schema(command: pb.CommandGetOrCreateSchema) -> Iterator[Demand]:
    yield _of_topic(Right.PRODUCE, command.topic)


def _add_partitions(
    command: pb.CommandNewTxn | pb.CommandAddPartitionToTxn,
) -> Iterator[Demand]:
    for topic in command.partitions:
        yield _of_topic(Right.PRODUCE, topic)


def _add_subscriptions(
    command: pb.CommandNewTxn | pb.CommandAddSubscriptionToTxn,
) -> Iterator[Demand]:
    for each in command.subscription:
        yield _of_topic(Right.CONSUME, each.topic, each.subscription)


def _expected(command: pb.CommandNewTxn) -> Iterator[Demand]:
    """The demands of the participants that the transaction begins with."""
    yield from _add_partitions(command)
    yield from _add_subscriptions(command)


class Rule(NamedTuple):
    """The ``right`` that a command needs. ``demands`` says where, from the command."""

    right: Right
    demands: Demands = no_demands
    refuse: Refusal = _error


_CONNECT, _OPENED, _NOBODY = Rule(Right.CONNECT), Rule(Right.OPENED), Rule(Right.NOBODY)
_FAILED_METADATA = {"response": pb.CommandPartitionedTopicMetadataResponse.Failed}
_FAILED_LOOKUP = {"response": pb.CommandLookupTopicResponse.Failed}

COMMANDS: Mapping[type, Rule] = {
    # The connection.
    pb.CommandConnect: _CONNECT,
    pb.CommandAuthResponse: _CONNECT,
    pb.CommandPing: _CONNECT,
    pb.CommandPong: _CONNECT,
    # Topics.
    pb.CommandPartitionedTopicMetadata: Rule(
        Right.LOOKUP,
        _lookup,
        _answer(pb.CommandPartitionedTopicMetadataResponse, **_FAILED_METADATA),
    ),
    pb.CommandLookupTopic: Rule(
        Right.LOOKUP, _lookup, _answer(pb.CommandLookupTopicResponse, **_FAILED_LOOKUP)
    ),
    pb.CommandGetTopicsOfNamespace: Rule(Right.LOOKUP, _list),
    pb.CommandGetSchema: Rule(Right.LOOKUP, _lookup, _schema_answer(pb.CommandGetSchemaResponse)),
    pb.CommandGetOrCreateSchema: Rule(
        Right.PRODUCE, _register_schema, _schema_answer(pb.CommandGetOrCreateSchemaResponse)
    ),
    # Producers and consumers.
    pb.CommandProducer: Rule(Right.PRODUCE, _produce),
    Send: _OPENED,
    pb.CommandCloseProducer: _OPENED,
    pb.CommandSubscribe: Rule(Right.CONSUME, _subscribe),
    pb.CommandCloseConsumer: _OPENED,
    pb.CommandFlow: _OPENED,
    pb.CommandAck: _OPENED,
    pb.CommandRedeliverUnacknowledgedMessages: _OPENED,
    pb.CommandUnsubscribe: _OPENED,
    pb.CommandSeek: _OPENED,
    pb.CommandGetLastMessageId: _OPENED,
    pb.CommandConsumerStats: _OPENED,
    # Transactions: the coordinator checks that the role has begun them.
    pb.CommandTcClientConnectRequest: _CONNECT,
    pb.CommandNewTxn: Rule(Right.CONNECT, _expected, _answer(pb.CommandNewTxnResponse)),
    pb.CommandAddPartitionToTxn: Rule(
        Right.PRODUCE, _add_partitions, _transaction_answer(pb.CommandAddPartitionToTxnResponse)
    ),
    pb.CommandAddSubscriptionToTxn: Rule(
        Right.CONSUME,
        _add_subscriptions,
        _transaction_answer(pb.CommandAddSubscriptionToTxnResponse),
    ),
    pb.CommandEndTxn: _CONNECT,
    # Commands that aren't served.
    pb.CommandEndTxnOnPartition: _NOBODY,
    pb.CommandEndTxnOnSubscription: _NOBODY,
    pb.CommandWatchTopicList: _NOBODY,
    pb.CommandWatchTopicListClose: _NOBODY,
    # Answers and notices, which only the service sends.
    pb.CommandConnected: _NOBODY,
    pb.CommandAuthChallenge: _NOBODY,
    pb.CommandSendReceipt: _NOBODY,
    pb.CommandSendError: _NOBODY,
    pb.CommandMessage: _NOBODY,
    pb.CommandSuccess: _NOBODY,
    pb.CommandError: _NOBODY,
    pb.CommandProducerSuccess: _NOBODY,
    pb.CommandPartitionedTopicMetadataResponse: _NOBODY,
    pb.CommandLookupTopicResponse: _NOBODY,
    pb.CommandConsumerStatsResponse: _NOBODY,
    pb.CommandReachedEndOfTopic: _NOBODY,
    pb.CommandGetLastMessageIdResponse: _NOBODY,
    pb.CommandActiveConsumerChange: _NOBODY,
    pb.CommandGetTopicsOfNamespaceResponse: _NOBODY,
    pb.CommandGetSchemaResponse: _NOBODY,
    pb.CommandAckResponse: _NOBODY,
    pb.CommandGetOrCreateSchemaResponse: _NOBODY,
    pb.CommandNewTxnResponse: _NOBODY,
    pb.CommandAddPartitionToTxnResponse: _NOBODY,
    pb.CommandAddSubscriptionToTxnResponse: _NOBODY,
    pb.CommandEndTxnResponse: _NOBODY,
    pb.CommandEndTxnOnPartitionResponse: _NOBODY,
    pb.CommandEndTxnOnSubscriptionResponse: _NOBODY,
    pb.CommandTcClientConnectResponse: _NOBODY,
    pb.CommandWatchTopicListSuccess: _NOBODY,
    pb.CommandWatchTopicUpdate: _NOBODY,
    pb.CommandTopicMigrated: _NOBODY,
}
"""The rule of each command, by its type. `Send` stands for CommandSend."""
