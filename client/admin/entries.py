"""Stored entries, as the admin interface answers them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote

from velaray.client.admin.transports import Answer
from velaray.client.message_id import MessageId
from velaray.events.ids import MessageId as StoredId


@dataclass(frozen=True, slots=True)
class PeekedEntry:
    """A stored entry. Its payload is a batch if ``messages_in_batch`` isn't None. Its key is "" if
    it is a batch or has none."""

    message_id: MessageId
    payload: bytes
    publish_time: int
    properties: Mapping[str, str]
    messages_in_batch: int | None
    key: str = ""
    encrypted: bool = False


def entry_of(answer: Answer) -> PeekedEntry:
    """The entry in an answer: its metadata is in the headers."""
    headers = answer.headers
    batch = headers.get("x-pulsar-num-batch-message")
    return PeekedEntry(
        MessageId.from_stored(StoredId.parse(headers["x-pulsar-message-id"])),
        answer.content,
        _milliseconds(headers["x-pulsar-publish-time"]),
        json.loads(headers.get("x-pulsar-property", "{}")),
        None if batch is None else int(batch),
        unquote(headers.get("x-pulsar-partition-key", "")),
        headers.get("x-pulsar-is-encrypted") == "true",
    )


def _milliseconds(text: str) -> int:
    """Return the time of a header in milliseconds since 1970. It is a number, or a date in Pulsar's
    form."""
    if text.isdigit():
        return int(text)
    since = datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(milliseconds=1)
