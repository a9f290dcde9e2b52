"""The Prometheus endpoint: ``/metrics`` on the admin port, under the same rules of access.

A scrape asks only running actors. It starts no actor and doesn't delay passivation.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    UnknownMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from typing_extensions import TypedDict

from velaray.admin.binding import Route
from velaray.admin.http import ACTOR_SYSTEM
from velaray.broker.actor_messages import Metrics
from velaray.client.admin.operations import TEXT, Operation, Texts
from velaray.events.ids import ActorKey, ActorKind
from velaray.topology.actor_system import ActorSystem
from velaray.topology.config import ClusterConfig
from velaray.topology.host_control import HostControl, HostStatus
from velaray.topology.loop_lag import LoopLag
from velaray.topology.metrics import METRICS, PARTS, Kind, Labels, Sample
from velaray.topology.pacing import Pace
from velaray.topology.ray_process import resident_bytes
from velaray.topology.rpc import RemoteError
from velaray.topology.stores import directory_of
from velaray.topology.tls import server_tls
from velaray.wire.guard import Usage, usage_of_process

if TYPE_CHECKING:
    from velaray.admin.otlp_metrics import MetricsExporter

logger = logging.getLogger("velaray")

ACTOR_S = 2.0
"""Time limit of one actor's answer."""
SCRAPE_S = 8.0
"""Time limit of a scrape, below Prometheus's default scrape timeout."""

SLICE = 100
"""Samples that are handled without a pause: about a millisecond of work."""

SCRAPE_LOCK = web.AppKey("scrape_lock", asyncio.Lock)
LOOP_LAG = web.AppKey("loop_lag", LoopLag)


_FAMILIES: Mapping[Kind, Callable[..., Any]] = {
    Kind.GAUGE: GaugeMetricFamily,
    Kind.COUNTER: CounterMetricFamily,
    Kind.UNTYPED: UnknownMetricFamily,
}


class _Scraped(Collector):
    """Samples as Prometheus's metric families."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._by_name: dict[str, list[Sample]] = {}
        for sample in samples:
            name = PARTS.get(sample.name, sample.name)
            self._by_name.setdefault(name, []).append(sample)

    def collect(self) -> Iterator[Metric]:
        """One family for each name, with the labels of its samples."""
        for name, samples in self._by_name.items():
            kind, text = METRICS[name]
            if kind is Kind.HISTOGRAM:
                histogram = Metric(name, text, kind)
                for sample in samples:
                    histogram.add_sample(*sample)
                yield histogram
                continue
            labels = sorted({label for sample in samples for label in sample.labels})
            family = _FAMILIES[kind](name, text, labels=labels)
            for sample in samples:
                values = [sample.labels.get(label, "") for label in labels]
                family.add_metric(values, sample.value)
            yield family


def as_text(samples: Iterable[Sample]) -> bytes:
    """Samples in Prometheus's text format. Raises `KeyError` for a metric that isn't named here."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scraped(samples))
    return generate_latest(registry)


def gathered(cluster: str, found: Mapping[ActorKey, Any]) -> Iterator[Sample]:
    """The actors' samples, and the samples that are computed from all of them."""
    for answer in found.values():
        for sample in answer or ():
            yield Sample(*sample)
    mine = {"cluster": cluster}
    running = [key for key, answer in found.items() if answer is not None]
    kinds = Counter(key.kind for key in running)
    for kind in ActorKind:
        yield Sample("velaray_actors", {**mine, "kind": kind.value}, kinds[kind])
    yield Sample("velaray_actors_silent", mine, len(found) - len(running))
    spaces = Counter(
        Labels(cluster, key).of_namespace()["namespace"]
        for key in running
        if key.kind is ActorKind.PARTITION
    )
    for space, count in sorted(spaces.items()):
        yield Sample("pulsar_topics_count", {**mine, "namespace": space}, count)


async def in_slices(samples: Iterable[Sample]) -> AsyncIterator[Sample]:
    """The samples. The event loop may have a pause after every `SLICE` of them: those of many
    actors take long, and lookups and pages must not wait for all."""
    pace = Pace()
    for number, sample in enumerate(samples, 1):
        yield sample
        if number % SLICE == 0:
            await pace.pause()


class LabelledMetrics(TypedDict):
    """The metrics with the same labels, by name."""

    dimensions: Texts
    metrics: dict[str, float]


async def by_labels(samples: Iterable[Sample], names: Container[str]) -> list[LabelledMetrics]:
    """The metrics of these names, those with the same labels together."""
    found: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    async for sample in in_slices(samples):
        if sample.name in names:
            found.setdefault(tuple(sorted(sample.labels.items())), {})[sample.name] = sample.value
    return [{"dimensions": dict(labels), "metrics": values} for labels, values in found.items()]


def of_hosts(cluster: str, hosts: Iterable[HostStatus]) -> Iterator[Sample]:
    """The samples of the processes that actors share."""
    for host in hosts:
        labels = {"cluster": cluster, "host": host.name}
        yield Sample("velaray_host_actors", labels, len(host.actors))
        yield Sample("velaray_host_memory_bytes", labels, host.memory)
        yield Sample("velaray_host_cpu_seconds_total", labels, host.cpu_s)
        yield Sample("velaray_host_loop_lag_seconds", labels, host.lag_s)
        yield from of_connections(cluster, host.name, host.connections)


def of_connections(cluster: str, process: str, usage: Usage) -> Iterator[Sample]:
    """The samples of the connections of clients to a process."""
    labels = {"cluster": cluster, "host": process}
    yield Sample("velaray_connections", labels, usage.connections)
    yield Sample("velaray_connections_refused_total", labels, usage.refused)
    yield Sample("velaray_connections_shed_total", labels, usage.closed)
    yield Sample("velaray_role_refusals_total", labels, usage.role_refusals)
    yield Sample("velaray_memory_refusals_total", labels, usage.memory_refusals)
    yield Sample("velaray_received_buffer_bytes", labels, usage.received)
    yield Sample("velaray_unsent_buffer_bytes", labels, usage.unsent)


def of_proxy(cluster: str, lag: LoopLag) -> Iterator[Sample]:
    """The samples of this process, which is the whole cluster without Ray."""
    labels = {"cluster": cluster, "host": "proxy"}
    yield Sample("velaray_host_memory_bytes", labels, resident_bytes())
    yield Sample("velaray_host_cpu_seconds_total", labels, time.process_time())
    yield Sample("velaray_host_loop_lag_seconds", labels, lag.longest())
    yield from of_connections(cluster, "proxy", usage_of_process())


async def push_metrics(app: web.Application) -> AsyncIterator[None]:
    """Export the metrics by OTLP while the application serves, if the cluster has an endpoint.

    The proxy of the first node does it for the whole cluster.
    """
    config = app[ACTOR_SYSTEM].config
    first = not config.nodes or config.nodes[0] == config.listen_host
    if not (config.otlp_endpoint and first):
        yield
        return
    from velaray.admin.otlp_metrics import MetricsExporter

    exporter = MetricsExporter(config.otlp_endpoint, config.name)
    pushing = asyncio.get_running_loop().create_task(_push(app, exporter, config.otlp_interval_s))
    yield
    pushing.cancel()
    exporter.close()


async def _push(app: web.Application, exporter: MetricsExporter, interval_s: float) -> None:
    while True:
        await asyncio.sleep(interval_s)
        try:
            samples = await scraped(app)
        except TimeoutError:
            logger.warning("no metrics were exported: the actors don't answer in time")
            continue
        await asyncio.to_thread(exporter.export, samples)


async def measure_lag(app: web.Application) -> AsyncIterator[None]:
    """Measure the delay of the event loop while the application serves."""
    measuring = asyncio.get_running_loop().create_task(app[LOOP_LAG].measure())
    yield
    measuring.cancel()


def of_tls(config: ClusterConfig) -> Iterator[Sample]:
    """The samples of the certificate of this process; none without TLS."""
    tls = server_tls(config)
    if tls is not None:
        tls.refresh()
        labels = {"cluster": config.name}
        yield Sample("velaray_tls_expiry_timestamp_seconds", labels, tls.expires_s)
        yield Sample("velaray_tls_files_refused", labels, bool(tls.problem))


async def of_disk(actor_system: ActorSystem) -> list[Sample]:
    """The samples of the data directory's file system; none with another store."""
    root = directory_of(actor_system.store)
    if root is None:
        return []
    space = await asyncio.to_thread(shutil.disk_usage, root)
    labels = {"cluster": actor_system.config.name}
    return [
        Sample("velaray_disk_bytes", labels, space.total),
        Sample("velaray_disk_free_bytes", labels, space.free),
    ]


async def _hosts(control: HostControl | None) -> list[HostStatus]:
    """The hosts that answer in time; none if the placement directory is away: like a silent actor,
    it doesn't fail the scrape."""
    if control is not None:
        with suppress(RemoteError, TimeoutError):
            async with asyncio.timeout(ACTOR_S):
                return await control.hosts()
    return []


async def scraped(app: web.Application) -> list[Sample]:
    """The samples of every running actor and of the processes; scrapes run one at a time.

    Raises `TimeoutError`.
    """
    actor_system = app[ACTOR_SYSTEM]
    async with asyncio.timeout(SCRAPE_S), app[SCRAPE_LOCK]:
        found = await actor_system.survey(Metrics, ACTOR_S)
        hosts = await _hosts(actor_system.host_control)
    config = actor_system.config
    samples = [sample async for sample in in_slices(gathered(config.name, found))]
    samples += [*of_hosts(config.name, hosts), *of_tls(config), *await of_disk(actor_system)]
    return [*samples, *of_proxy(config.name, app[LOOP_LAG])]


async def metrics(request: web.Request) -> web.Response:
    """The metrics in Prometheus's text format."""
    samples = await scraped(request.app)
    body = await asyncio.to_thread(as_text, samples)  # of many actors it takes a second
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


ROUTES: tuple[Route, ...] = (
    Route(Operation("GET", "/metrics", answers={200: str}, content=TEXT), metrics),
)
