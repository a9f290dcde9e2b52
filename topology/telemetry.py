"""Spans of a cluster's processes, exported by OTLP. Without an endpoint there are none.

OpenTelemetry's packages (the extra ``otel``) are loaded only with an endpoint.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from velaray.topology.config import ClusterConfig

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from velaray.topology.store_spans import DeliverySpans, StoreSpans


class TelemetryMissing(RuntimeError):
    """An endpoint is given, and OpenTelemetry's packages aren't installed."""


def check_installed() -> None:
    """Raise `TelemetryMissing` unless this process can export."""
    try:
        found = find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise TelemetryMissing("--otlp-endpoint needs OpenTelemetry: pip install 'velaray[otel]'")


def url_of(endpoint: str, signal: str) -> str:
    """The URL that receives a signal: "traces" or "metrics"."""
    return f"{endpoint.rstrip('/')}/v1/{signal}"


def store_spans(config: ClusterConfig, topic: str) -> StoreSpans | None:
    """What makes the spans of a topic partition; None without an endpoint."""
    if not config.otlp_endpoint:
        return None
    from velaray.topology.store_spans import StoreSpans

    return StoreSpans(topic, _provider(config.otlp_endpoint, config.name))


def delivery_spans(config: ClusterConfig, topic: str, subscription: str) -> DeliverySpans | None:
    """What makes the spans of deliveries of a subscription; None without an endpoint."""
    if not config.otlp_endpoint:
        return None
    from velaray.topology.store_spans import DeliverySpans

    return DeliverySpans(topic, subscription, _provider(config.otlp_endpoint, config.name))


@cache
def _provider(endpoint: str, cluster: str) -> TracerProvider:
    """The provider of this process. It exports in a thread of its own."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from velaray.topology.store_spans import resource_of

    provider = TracerProvider(resource=resource_of(cluster))
    exporter = OTLPSpanExporter(endpoint=url_of(endpoint, "traces"))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
