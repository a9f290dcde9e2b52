"""Messages in requests and answers of the admin interface."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from aiohttp import web

from velaray.admin.http import AdminError
from velaray.events.ids import INT64_MAX, MessageId
from velaray.wire.compression import decompress
from velaray.wire.errors import CompressionError
from velaray.wire.pulsar_pb2 import MessageMetadata

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_message_id(body: Mapping[str, Any]) -> MessageId:
    """The message id in a request's body. Raises `AdminError`."""
    return MessageId(
        _number(body, "ledgerId"), _number(body, "entryId"), _number(body, "partitionIndex", -1)
    )


def _number(body: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = body.get(field, default)
    if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value <= INT64_MAX:
        raise AdminError(400, f"{field} must be a whole number, at least -1")
    return value


def entry_answer(found: Mapping[str, Any]) -> web.Response:
    """The answer for one entry: its payload, uncompressed; the metadata in headers, as in Pulsar.

    A batch is answered as a batch.
    """
    metadata = MessageMetadata.FromString(found["metadata"])
    return web.Response(
        body=readable(metadata, found["payload"]),
        headers=_headers(found["id"], metadata),
        content_type="application/octet-stream",
    )


def readable(metadata: MessageMetadata, payload: bytes) -> bytes:
    """The payload of an entry, uncompressed unless it is encrypted. Raises `AdminError`."""
    if metadata.encryption_keys:
        return payload  # only holders of the key can decrypt it
    try:
        return bytes(decompress(metadata.compression, payload, metadata.uncompressed_size))
    except CompressionError as error:
        raise AdminError(422, f"the entry can't be shown: {error}") from error


def _headers(found: list[int], metadata: MessageMetadata) -> dict[str, str]:
    headers = {
        "X-Pulsar-Message-ID": f"{found[0]}:{found[1]}",
        "X-Pulsar-publish-time": _time_text(metadata.publish_time),
        "X-Pulsar-producer-name": _header_text(metadata.producer_name),
        "X-Pulsar-sequence-id": str(metadata.sequence_id),
    }
    if metadata.HasField("event_time"):
        headers["X-Pulsar-event-time"] = _time_text(metadata.event_time)
    if metadata.HasField("deliver_at_time"):
        headers["X-Pulsar-deliver-at-time"] = _time_text(metadata.deliver_at_time)
    if metadata.HasField("num_messages_in_batch"):
        headers["X-Pulsar-num-batch-message"] = str(metadata.num_messages_in_batch)
    if metadata.HasField("partition_key"):
        headers["X-Pulsar-partition-key"] = _header_text(metadata.partition_key)
    if metadata.HasField("schema_version"):
        headers["X-Velaray-schema-version"] = metadata.schema_version.hex()
    if metadata.properties:
        named = {item.key: item.value for item in metadata.properties}
        headers["X-Pulsar-PROPERTY"] = json.dumps(named)
    if metadata.encryption_keys:
        headers["X-Pulsar-Is-Encrypted"] = "true"
    return headers


def _time_text(at_ms: int) -> str:
    """A time in milliseconds since 1970 as Pulsar's tools read it.

    A value outside the calendar's range is returned as a number.
    """
    try:
        found = _EPOCH + timedelta(milliseconds=at_ms)
    except OverflowError:
        return str(at_ms)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _header_text(text: str) -> str:
    """``text`` with the characters that a header can't carry percent-encoded."""
    return quote(text, safe=string.punctuation + " ")
