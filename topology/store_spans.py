"""The spans of a topic partition: one for each traced message, while its entry becomes durable."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind, Status, StatusCode

from velaray.actors.machine import Refusal
from velaray.client.telemetry import carried
from velaray.wire.batches import BatchLayout
from velaray.wire.compression import decompress
from velaray.wire.errors import WireError
from velaray.wire.messages import is_batch, split_entry
from velaray.wire.pulsar_pb2 import KeyValue, MessageMetadata

Release = Callable[[Any, tuple[Any, ...]], None]
"""Handles the reply and the effects of a command."""


def resource_of(cluster: str) -> Resource:
    """The description of this process in traces and metrics. Variables ``OTEL_...`` add to it."""
    return Resource.create(
        {
            "service.name": "velaray",
            "service.namespace": cluster,
            "service.instance.id": f"{os.uname().nodename}:{os.getpid()}",
        }
    )


class StoreSpans:
    """Makes the spans of one topic partition."""

    def __init__(self, topic: str, provider: TracerProvider) -> None:
        self._name = f"store {topic}"
        self._attributes = {
            "messaging.system": "pulsar",
            "messaging.destination.name": topic,
            "messaging.operation.name": "store",
        }
        self._tracer = provider.get_tracer("velaray")

    def watch(self, entry: bytes, release: Release) -> Release:
        """Begin the spans of an entry's messages. The result ends them, then calls ``release``.

        Messages without a context, or whose trace isn't sampled, have no span, and neither has an
        entry that can't be read.
        """
        parents = list(contexts_of(entry))
        if not parents:
            return release
        attributes: dict[str, Any] = dict(self._attributes)
        if len(parents) > 1:
            attributes["messaging.batch.message_count"] = len(parents)
        spans = [
            self._tracer.start_span(self._name, parent, SpanKind.SERVER, attributes)
            for parent in parents
        ]

        def done(reply: Any, effects: tuple[Any, ...]) -> None:
            for span in spans:
                if isinstance(reply, Refusal):
                    span.set_attribute("error.type", reply.reason.name)
                    span.set_status(Status(StatusCode.ERROR, reply.message))
                elif (position := getattr(reply, "position", None)) is not None:
                    ledger_id, entry_id = position
                    span.set_attribute("velaray.entry", f"{ledger_id}:{entry_id}")
                span.end()
            release(reply, effects)

        return done


def contexts_of(entry: bytes) -> Iterator[Context]:
    """The contexts that the messages of a sealed entry carry."""
    try:
        metadata, payload = split_entry(entry)
        for properties in _properties(metadata, payload):
            found = carried({each.key: each.value for each in properties})
            if found is not None:
                yield found
    except WireError:
        return


def _properties(metadata: MessageMetadata, payload: memoryview) -> Iterator[Iterable[KeyValue]]:
    """The properties of each message. Those of an encrypted batch can't be read."""
    if not is_batch(metadata):
        yield metadata.properties
    elif not metadata.encryption_keys:
        size = metadata.uncompressed_size
        layout = BatchLayout(
            decompress(metadata.compression, payload, size), 0, metadata.num_messages_in_batch
        )
        for index in range(layout.count):
            single = layout.single(index)
            if single is not None:
                yield single.properties
