"""Spans and metrics by OTLP of a cluster of real Ray actors."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider

from tests.ray.support import RayNodes, wait_until
from tests.support.otlp import Receiver
from velaray import Client
from velaray.cluster import Cluster
from velaray.telemetry import TracingProducerInterceptor

WORKERS = 0


def test_actors_export_spans_and_the_proxy_metrics(nodes: RayNodes, data_dir: Path) -> None:
    with (
        closing(Receiver()) as receiver,
        Cluster.start(
            data_dir,
            service_port=0,
            admin_port=0,
            name="traced",
            otlp_endpoint=receiver.url,
            otlp_interval_s=1,
        ) as cluster,
        Client(cluster.service_url) as client,
    ):
        tracing = TracingProducerInterceptor(TracerProvider())
        client.create_producer("t", interceptors=[tracing]).send(b"x")
        wait_until(lambda: receiver.stored("t"), "the broker's span")
        assert receiver.resources[-1]["service.namespace"] == "traced"
        wait_until(lambda: "pulsar_in_messages_total" in receiver.metrics, "the metrics")
