"""Traces of OpenTelemetry: interceptors of producers and consumers. Needs the extra ``otel``.

The context of a trace travels in the properties ``traceparent`` and ``tracestate`` of messages, in
W3C's form. Names and attributes of spans are those of OpenTelemetry's conventions for messaging.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from velaray.client.exceptions import VelarayError
from velaray.client.interceptors import (
    ConsumerInterceptor,
    ProducerInterceptor,
    SendManyWatch,
)
from velaray.client.message import Message, OutgoingMessage
from velaray.client.message_id import MessageId
from velaray.wire.trace_context import PARENT, STATE

MOST_OPEN = 10_000
"""The most spans of a consumer that wait for acknowledgements; the oldest ends without one."""
_W3C = TraceContextTextMapPropagator()
_SCOPE = "velaray"
_Place = tuple[str | None, int, int, int]


def context_of(message: Message[Any]) -> Context:
    """The trace that a message belongs to, as the parent of new spans; an empty context if none."""
    return _parent_of(message) or Context()


def carried(properties: Mapping[str, str]) -> Context | None:
    """The context in a message's properties; None if there is none."""
    return _W3C.extract(properties, Context()) if PARENT in properties else None


def _parent_of(message: Message[Any]) -> Context | None:
    """The context that a message carries, or else its batch (see `wire.trace_context`)."""
    found = carried(message.properties())
    if found is None and message.index >= 0:
        batch = {each.key: each.value for each in message.info.metadata.properties}
        found = carried(batch)
    return found


class TracingProducerInterceptor(ProducerInterceptor):
    """A span ``send TOPIC`` for each message, from the call until the receipt or the failure.

    Its parent is the current span of the caller. The message gets its context, instead of one that
    it has already. A call of ``send_many`` has one span, whose context its entries get.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        """``provider`` makes the spans; None: the program's global one."""
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=provider)
        self._open: dict[str, Span] = {}

    def before_send(self, producer: Any, message: OutgoingMessage) -> OutgoingMessage:
        """Begin the span."""
        topic = producer.topic()
        attributes = _attributes(topic, "send", _size(len(message.payload)))
        span = self._tracer.start_span(
            f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        carrier = message.properties()
        carrier.pop(STATE, None)
        _W3C.inject(carrier, trace.set_span_in_context(span, Context()))
        message.pairs = carrier
        if span.is_recording():
            self._open[carrier[PARENT]] = span
        return message

    def before_send_many(self, producer: Any, messages: int) -> SendManyWatch:
        """Begin the span of a call, which ends with the last receipt or the failure."""
        topic = producer.topic()
        attributes = _attributes(topic, "send", {"messaging.batch.message_count": messages})
        span = self._tracer.start_span(
            f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, trace.set_span_in_context(span, Context()))
        return SendManyWatch(carrier, partial(_end, span))

    def on_send_acknowledgement(
        self,
        producer: Any,
        message: OutgoingMessage,
        message_id: MessageId | None,
        error: VelarayError | None,
    ) -> None:
        """End the span."""
        span = self._open.pop(message.properties().get(PARENT, ""), None)
        if span is None:
            return
        if message_id is not None:
            _name(span, message_id)
        _end(span, error)

    def close(self) -> None:
        """End the spans of messages whose outcome is unknown."""
        while self._open:
            _end(self._open.popitem()[1], "closed")


class TracingConsumerInterceptor(ConsumerInterceptor):
    """A span ``process TOPIC`` for each message, from its delivery to the program until its
    acknowledgement.

    Its parent is the span that sent the message. A negative acknowledgement or the acknowledgement
    timeout ends it with an error, the close of the consumer without one.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        """``provider`` makes the spans; None: the program's global one."""
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=provider)
        self._open: dict[_Place, Span] = {}
        self._lock = threading.Lock()

    def context_of(self, message: Message[Any]) -> Context:
        """The context whose span is the message's, for spans about parts of the processing."""
        span = self._open.get(_place(message.message_id()))
        return context_of(message) if span is None else trace.set_span_in_context(span)

    def before_consume(self, consumer: Any, message: Message[Any]) -> Message[Any]:
        """Begin the span."""
        topic, message_id = message.topic_name(), message.message_id()
        attributes = _attributes(topic, "process", _size(len(message)))
        attributes["messaging.destination.subscription.name"] = consumer.subscription_name()
        if message.redelivery_count():
            attributes["velaray.redelivery_count"] = message.redelivery_count()
        parent = _parent_of(message)
        span = self._tracer.start_span(f"process {topic}", parent, SpanKind.CONSUMER, attributes)
        if not span.is_recording():
            return message
        _name(span, message_id)
        with self._lock:
            ended = [self._open.pop(_place(message_id), None)]
            self._open[_place(message_id)] = span
            if len(self._open) > MOST_OPEN:
                ended.append(self._open.pop(next(iter(self._open))))
        for each in ended:
            if each is not None:
                _end(each, "not acknowledged")
        return message

    def on_acknowledge(
        self, consumer: Any, message_id: MessageId, error: VelarayError | None
    ) -> None:
        """End the span of a message."""
        with self._lock:
            span = self._open.pop(_place(message_id), None)
        if span is not None:
            _end(span, error)

    def on_acknowledge_cumulative(
        self, consumer: Any, message_id: MessageId, error: VelarayError | None
    ) -> None:
        """End the spans of all messages up to this one."""
        topic, *last = _place(message_id)
        if message_id.batch_index() < 0:
            last[-1] = message_id.batch_size()  # the whole entry
        self._end_where(lambda place: place[0] == topic and [*place[1:]] <= last, error)

    def on_negative_acks_send(self, consumer: Any, message_ids: set[MessageId]) -> None:
        """End the spans of entries that the program didn't process."""
        self._end_entries(message_ids, "negative acknowledgement")

    def on_ack_timeout_send(self, consumer: Any, message_ids: set[MessageId]) -> None:
        """End the spans of entries that weren't acknowledged in time."""
        self._end_entries(message_ids, "acknowledgement timeout")

    def close(self) -> None:
        """End the spans of messages that weren't acknowledged."""
        self._end_where(lambda _: True, None)

    def _end_entries(self, message_ids: Iterable[MessageId], problem: str) -> None:
        entries = {_place(each)[:3] for each in message_ids}
        self._end_where(lambda place: place[:3] in entries, problem)

    def _end_where(self, meant: Any, problem: VelarayError | str | None) -> None:
        with self._lock:
            ended = [self._open.pop(place) for place in list(self._open) if meant(place)]
        for span in ended:
            _end(span, problem)


def _place(message_id: MessageId) -> _Place:
    at = message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()
    return (message_id.topic_name(), *at)


def _size(payload: int) -> dict[str, int]:
    return {"messaging.message.body.size": payload}


def _attributes(topic: str, operation: str, more: Mapping[str, int]) -> dict[str, Any]:
    return {
        "messaging.system": "pulsar",
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        **more,
    }


def _name(span: Span, message_id: MessageId) -> None:
    """Set the attributes that a message has once it is stored."""
    parts = (message_id.ledger_id(), message_id.entry_id(), message_id.partition())
    span.set_attribute(
        "messaging.message.id", ":".join(map(str, (*parts, message_id.batch_index())))
    )
    if message_id.partition() >= 0:
        span.set_attribute("messaging.destination.partition.id", str(message_id.partition()))


def _end(span: Span, problem: VelarayError | str | None) -> None:
    if problem is not None:
        kind = problem if isinstance(problem, str) else type(problem).__name__
        span.set_attribute("error.type", kind)
        span.set_status(Status(StatusCode.ERROR, str(problem)))
    span.end()
