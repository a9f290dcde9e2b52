"""Traces of OpenTelemetry for producers and consumers. Needs the extra ``otel``."""

from __future__ import annotations

from velaray.client.telemetry import (
    TracingConsumerInterceptor,
    TracingProducerInterceptor,
    context_of,
)

__all__ = ["TracingConsumerInterceptor", "TracingProducerInterceptor", "context_of"]
