"""The spans of a topic partition for each traced message: while its entry becomes durable, and when
it is written to a consumer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind, Status, StatusCode

from velaray.actors.machine import Refusal
from velaray.client.telemetry import carried
from velaray.events.ids import Position
from velaray.wire.batches import BatchLayout
from velaray.wire.compression import decompress
from velaray.wire.errors import WireError
from velaray.wire.messages import Buffer, is_batch, split_entry
from velaray.wire.pulsar_pb2 import KeyValue, MessageMetadata
from velaray.wire.trace_context import PARENT, exposed_in

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


class DeliverySpans:
    """Makes the spans of the deliveries of one subscription."""

    def __init__(self, topic: str, subscription: str, provider: TracerProvider) -> None:
        self._name = f"deliver {topic}"
        self._attributes = {
            "messaging.system": "pulsar",
            "messaging.destination.name": topic,
            "messaging.destination.subscription.name": subscription,
            "messaging.operation.name": "deliver",
        }
        self._tracer = provider.get_tracer("velaray")

    def written(self, entry: Buffer, position: Position, consumer: str, again: int) -> None:
        """A span for each traced message of an entry that a consumer's connection has taken.

        ``again`` is the number of earlier deliveries.
        """
        found = {"velaray.entry": f"{position.ledger_id}:{position.entry_id}"}
        attributes: dict[str, Any] = {**self._attributes, **found, "velaray.consumer": consumer}
        if again:
            attributes["velaray.redelivery_count"] = again
        for parent in contexts_of(entry):
            self._tracer.start_span(self._name, parent, SpanKind.INTERNAL, attributes).end()


def contexts_of(entry: Buffer) -> Iterator[Context]:
    """The contexts that the messages of a sealed entry carry."""
    try:
        metadata, payload = split_entry(entry)
        for properties in _properties(metadata, payload):
            found = carried(properties)
            if found is not None:
                yield found
    except WireError:
        return


def _named(pairs: Iterable[KeyValue]) -> dict[str, str]:
    return {each.key: each.value for each in pairs}


def _properties(metadata: MessageMetadata, payload: memoryview) -> Iterator[Mapping[str, str]]:
    """The properties of each message, or of a batch with one context for all its messages."""
    own = _named(metadata.properties)
    if not is_batch(metadata) or PARENT in own:
        yield own
    elif metadata.encryption_keys:
        yield from exposed_in(metadata.properties)
    else:
        size = metadata.uncompressed_size
        layout = BatchLayout(
            decompress(metadata.compression, payload, size), 0, metadata.num_messages_in_batch
        )
        for index in range(layout.count):
            single = layout.single(index)
            if single is not None:
                yield _named(single.properties)
