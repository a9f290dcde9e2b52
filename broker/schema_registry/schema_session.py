"""The answers of partitions' and proxies' sessions about schemas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from velaray.broker.schema_registry.schema_calls import info_of
from velaray.broker.wire_errors import code_of
from velaray.events.ids import InvalidNameError, TopicName
from velaray.schemas import SchemaInfo, SchemaType
from velaray.topology.rpc import reason_of
from velaray.topology.transient import TRANSIENT_OR_STORE
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.schemas import NO_VERSION, from_proto, read_version, to_proto, version_bytes

_ERRORS: tuple[type[Exception], ...] = (InvalidNameError, *TRANSIENT_OR_STORE)

Find = Callable[[int | None], Awaitable[dict[str, Any]]]
"""Finds a version, or the latest one, as `find_schema` does."""
Register = Callable[[SchemaInfo], Awaitable[int | None]]
"""Registers a schema unless it is a version; returns its version."""


def schema_of(command: pb.CommandProducer | pb.CommandSubscribe) -> SchemaInfo | None:
    """The schema of a producer or consumer."""
    return from_proto(command.schema) if command.HasField("schema") else None


async def get_schema(command: pb.CommandGetSchema, find: Find) -> pb.CommandGetSchemaResponse:
    """The answer to a request for a version, or for the latest one.

    The Go client stamps values of its BYTES schema with an empty version, and asks for that
    version.
    """
    answer = pb.CommandGetSchemaResponse(request_id=command.request_id)
    try:
        TopicName.parse(command.topic)
        if command.HasField("schema_version") and command.schema_version == NO_VERSION:
            answer.schema.CopyFrom(to_proto(SchemaInfo(SchemaType.BYTES)))
            answer.schema_version = NO_VERSION
            return answer
        found = await find(read_version(command.schema_version))
    except _ERRORS as error:
        answer.error_code, answer.error_message = code_of(error), reason_of(error)
    except ValueError as error:
        answer.error_code, answer.error_message = pb.MetadataError, str(error)
    else:
        answer.schema.CopyFrom(to_proto(info_of(found)))
        answer.schema_version = version_bytes(found["version"])
    return answer


async def get_or_create_schema(
    command: pb.CommandGetOrCreateSchema, register: Register
) -> pb.CommandGetOrCreateSchemaResponse:
    """The version of a schema that a producer is going to use."""
    answer = pb.CommandGetOrCreateSchemaResponse(request_id=command.request_id)
    try:
        version = await register(from_proto(command.schema))
    except _ERRORS as error:
        answer.error_code, answer.error_message = code_of(error), reason_of(error)
    else:
        answer.schema_version = version_bytes(version)
    return answer
