"""The answers to commands that are out of their limits, as the clients of Pulsar expect them."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from velaray.wire import pulsar_pb2 as pb
from velaray.wire.limits import Fault

_WITH_ERROR: dict[type, type] = {
    pb.CommandAck: pb.CommandAckResponse,
    pb.CommandTcClientConnectRequest: pb.CommandTcClientConnectResponse,
    pb.CommandNewTxn: pb.CommandNewTxnResponse,
    pb.CommandAddPartitionToTxn: pb.CommandAddPartitionToTxnResponse,
    pb.CommandAddSubscriptionToTxn: pb.CommandAddSubscriptionToTxnResponse,
    pb.CommandEndTxn: pb.CommandEndTxnResponse,
    pb.CommandLookupTopic: pb.CommandLookupTopicResponse,
    pb.CommandPartitionedTopicMetadata: pb.CommandPartitionedTopicMetadataResponse,
}
_WITH_ERROR_CODE: dict[type, type] = {
    pb.CommandConsumerStats: pb.CommandConsumerStatsResponse,
    pb.CommandGetSchema: pb.CommandGetSchemaResponse,
    pb.CommandGetOrCreateSchema: pb.CommandGetOrCreateSchemaResponse,
}
_ECHOED = ("request_id", "consumer_id", "txnid_most_bits", "txnid_least_bits")
"""The fields by which a client finds the request of an answer."""


def refusal_of(command: Any, fault: Fault) -> Message | None:
    """The error that answers a command; None if the protocol has no answer to it."""
    kind = type(command)
    text = f"{kind.__name__} is refused: {fault.text}"
    if kind is pb.CommandConnect:
        return pb.CommandError(request_id=0, error=fault.code, message=text)
    if not getattr(command, "request_id", 0) and kind is pb.CommandAck:
        return None  # the client waits for no answer
    if not hasattr(command, "request_id"):
        return None
    if kind in _WITH_ERROR:
        answer = _WITH_ERROR[kind](error=fault.code, message=text)
        if kind is pb.CommandLookupTopic:
            answer.response = pb.CommandLookupTopicResponse.Failed
        elif kind is pb.CommandPartitionedTopicMetadata:
            answer.response = pb.CommandPartitionedTopicMetadataResponse.Failed
    elif kind in _WITH_ERROR_CODE:
        answer = _WITH_ERROR_CODE[kind](error_code=fault.code, error_message=text)
    else:
        answer = pb.CommandError(error=fault.code, message=text)
    return _echoed(command, answer)


def _echoed(command: Any, answer: Any) -> Message:
    known = answer.DESCRIPTOR.fields_by_name
    for name in _ECHOED:
        if name in known and name in command.DESCRIPTOR.fields_by_name:
            setattr(answer, name, getattr(command, name))
    found: Message = answer
    return found
