"""A receiver of OTLP over HTTP on loopback."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TOPIC = "persistent://public/default/{}"


class Receiver:
    """An OTLP receiver: what it got, by signal."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.metrics: dict[str, Any] = {}
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.take(self.path, body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(
                    {pair.key: pair.value.string_value for pair in each.resource.attributes}
                )
                self.spans += [span for scope in each.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            for each in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                found = [metric for scope in each.scope_metrics for metric in scope.metrics]
                self.metrics |= {metric.name: metric for metric in found}

    def stored(self, topic: str) -> list[Any]:
        """The broker's spans of a topic."""
        return [span for span in self.spans if span.name == f"store {TOPIC.format(topic)}"]

    def delivered(self, topic: str) -> list[Any]:
        """The broker's spans of the deliveries of a topic."""
        return [span for span in self.spans if span.name == f"deliver {TOPIC.format(topic)}"]

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()
