"""Stored entries as messages that people can read: batches are opened, values are decoded."""

from __future__ import annotations

import io
import json
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import fastavro

from velaray.client.admin.transports import Answer
from velaray.wire.batches import BatchLayout
from velaray.wire.errors import MalformedEntryError

MOST_SHOWN = 4096
"""Bytes of a value that are shown."""
_PRINTABLE = frozenset(string.printable)


@dataclass(frozen=True, slots=True)
class Shown:
    """A message: ``index`` is its number in a batch, -1 without one; ``form`` says how the value
    was decoded."""

    entry: str
    index: int
    key: str
    properties: Mapping[str, str]
    published: str
    producer: str
    size: int
    value: str
    form: str

    @property
    def id(self) -> str:
        """``ledger:entry``."""
        return self.entry


def messages_of(answer: Answer, schema: Mapping[str, Any] | None) -> list[Shown]:
    """The messages of an entry, from the answer of the REST interface."""
    headers, data = answer.headers, answer.content
    count = headers.get("x-pulsar-num-batch-message")
    sealed = headers.get("x-pulsar-is-encrypted") == "true"
    try:
        batch = BatchLayout(data, 0, int(count)) if count and not sealed else None
    except MalformedEntryError as error:
        return [_message(headers, -1, data, None, f"a damaged batch: {error}")]
    if batch is None:
        form = "encrypted" if sealed else ""
        return [_message(headers, -1, data, schema, form)]
    found = []
    for index, value in enumerate(batch.values(0, batch.count)):
        single = batch.single(index)
        named = dict(headers)
        if single is not None:
            named["x-pulsar-partition-key"] = single.partition_key
            named["x-pulsar-property"] = json.dumps(
                {item.key: item.value for item in single.properties}
            )
        found.append(_message(named, index, value, schema, ""))
    return found


def _message(
    headers: Mapping[str, str],
    index: int,
    value: bytes,
    schema: Mapping[str, Any] | None,
    form: str,
) -> Shown:
    text, decoded = (_hex(value), form) if form else decoded_value(value, schema)
    return Shown(
        headers["x-pulsar-message-id"],
        index,
        unquote(headers.get("x-pulsar-partition-key", "")),
        json.loads(headers.get("x-pulsar-property", "{}")),
        headers.get("x-pulsar-publish-time", ""),
        unquote(headers.get("x-pulsar-producer-name", "")),
        len(value),
        text,
        decoded,
    )


def decoded_value(value: bytes, schema: Mapping[str, Any] | None) -> tuple[str, str]:
    """A value as text, and the form that it was read as: its schema's, or a guess."""
    if schema is not None and schema["type"] == "AVRO":
        try:
            parsed = fastavro.parse_schema(json.loads(schema["data"]))
            found = fastavro.schemaless_reader(io.BytesIO(value), parsed, None)
        except (ValueError, EOFError, KeyError, IndexError, TypeError) as error:
            return _hex(value), f"not AVRO of version {schema['version']}: {error}"
        return _json(found), f"AVRO, version {schema['version']}"
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return _hex(value), "bytes"
    if not value or not set(text) <= _PRINTABLE | set(filter(str.isprintable, text)):
        return (_hex(value), "bytes") if value else ("", "empty")
    try:
        return _json(json.loads(text)), "JSON"
    except (ValueError, RecursionError):
        return text[:MOST_SHOWN], "text"


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)[:MOST_SHOWN]


def _hex(value: bytes) -> str:
    return value[: MOST_SHOWN // 3].hex(" ")
