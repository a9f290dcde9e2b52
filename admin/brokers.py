"""Routes of the admin interface for brokers: list, health, configuration, ``broker-stats``.

The proxy that receives the request stands for all of Pulsar's brokers. It holds the one bundle of
every namespace.
"""

from __future__ import annotations

import json
from collections.abc import Container
from itertools import chain
from typing import Any

import msgspec
from aiohttp import web
from typing_extensions import TypedDict

from velaray.actors.catalog.policies import DEFAULTS
from velaray.admin.binding import Route, given
from velaray.admin.clusters import known_cluster
from velaray.admin.http import (
    AdminError,
    actor_system_of,
    answer,
    ask_catalog,
    done,
)
from velaray.admin.metrics import ACTOR_S, LabelledMetrics, by_labels, gathered, of_disk
from velaray.admin.stats import topic_stats
from velaray.admin.topic_reads import WHOLE_RANGE
from velaray.admin.topics import ledger_sizes
from velaray.broker.actor_messages import Metrics
from velaray.broker.catalog import messages as m
from velaray.broker.partition.messages import Stats, Upkeep
from velaray.broker.session import SERVER_VERSION
from velaray.client.admin import clusters as operations
from velaray.client.admin.operations import JSON, TEXT, V2, Operation, Parameter, Texts, reads
from velaray.client.admin.topic_stats import TopicStats
from velaray.events.ids import ActorKey, ActorKind
from velaray.topology.metrics import METRICS

# Pulsar's broker settings for policies that are set nowhere: policy and field.
_DEFAULTS: dict[str, tuple[str, str]] = {
    "allowAutoTopicCreation": ("autoTopicCreation", "allowAutoTopicCreation"),
    "allowAutoSubscriptionCreation": ("autoSubscriptionCreation", "allowAutoSubscriptionCreation"),
    "brokerDeduplicationEnabled": ("deduplication", ""),
    "defaultRetentionTimeInMinutes": ("retention", "retentionTimeInMinutes"),
    "defaultRetentionSizeInMB": ("retention", "retentionSizeInMB"),
    "ttlDurationDefaultInSeconds": ("messageTTL", ""),
    "subscriptionExpirationTimeMinutes": ("subscriptionExpirationTime", ""),
    "schemaCompatibilityStrategy": ("schemaCompatibilityStrategy", ""),
    "isSchemaValidationEnforced": ("schemaValidationEnforced", ""),
    "isAllowAutoUpdateSchemaEnabled": ("isAllowAutoUpdateSchema", ""),
    "maxTopicsPerNamespace": ("maxTopicsPerNamespace", ""),
    "maxProducersPerTopic": ("maxProducersPerTopic", ""),
    "maxConsumersPerTopic": ("maxConsumersPerTopic", ""),
    "maxConsumersPerSubscription": ("maxConsumersPerSubscription", ""),
    "maxSubscriptionsPerTopic": ("maxSubscriptionsPerTopic", ""),
    "maxUnackedMessagesPerConsumer": ("maxUnackedMessagesPerConsumer", ""),
    "maxUnackedMessagesPerSubscription": ("maxUnackedMessagesPerSubscription", ""),
}


async def list_brokers(request: web.Request) -> web.Response:
    """The brokers of this cluster: the proxy that receives the request."""
    if "cluster" in request.match_info:
        await _check_own(request)
    return answer([request.host])


async def _check_own(request: web.Request) -> None:
    """Raise `RemoteError` for an unknown cluster, `AdminError` for another one."""
    await known_cluster(request)
    if request.match_info["cluster"] != actor_system_of(request).config.name:
        raise AdminError(412, "ask that cluster's own admin interface for its brokers")


async def leader(request: web.Request) -> web.Response:
    """The leader: the proxy that receives the request."""
    return answer({"brokerId": request.host, "serviceUrl": str(request.url.origin())})


async def health(request: web.Request) -> web.Response:
    """``ok`` if the catalog answers; otherwise 503."""
    await ask_catalog(request, m.Clusters())
    return web.Response(text="ok")


async def version(request: web.Request) -> web.Response:
    """The version of velaray."""
    return web.Response(text=SERVER_VERSION)


async def backlog_quota_check(request: web.Request) -> web.Response:
    """Make every running partition check its backlog quota and its other due maintenance now."""
    await actor_system_of(request).survey(Upkeep, ACTOR_S)
    return done()


async def owned_namespaces(request: web.Request) -> web.Response:
    """All namespaces, each with its one bundle."""
    await _check_own(request)
    if request.match_info["broker"] != request.host:
        raise AdminError(404, f"no broker {request.match_info['broker']}; there is {request.host}")
    status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    names = [
        name
        for tenant in await ask_catalog(request, m.Tenants())
        for name in await ask_catalog(request, m.Namespaces(tenant))
    ]
    return answer({f"{name}/{WHOLE_RANGE}": status for name in names})


# -- configuration -----------------------------------------------------------------


async def runtime_configuration(request: web.Request) -> web.Response:
    """The cluster's settings as strings, under Pulsar's names where they exist."""
    config = actor_system_of(request).config
    clusters = await ask_catalog(request, m.Clusters())
    set_here = await ask_catalog(request, m.Policies())
    found: dict[str, Any] = {
        "clusterName": config.name,
        "bindAddress": config.listen_host,
        "advertisedAddress": ",".join(config.advertised),
        "brokerServiceUrl": clusters[config.name]["service_url"],
        "brokerServiceUrlTls": clusters[config.name]["service_url_tls"],
        "webServiceUrl": clusters[config.name]["admin_url"],
        "webServiceUrlTls": clusters[config.name]["admin_url_tls"],
        "tlsEnabled": config.tls is not None,
        "advertisedListeners": ",".join(f"{k}:{v}" for k, v in sorted(config.listeners.items())),
        "authenticationEnabled": config.auth is not None,
        "maxMessageSize": config.max_message_size,
        "maxActiveTransactionsPerCoordinator": config.max_active_transactions,
        "transactionCoordinatorEnabled": True,
        "enablePersistentTopics": True,
        "enableNonPersistentTopics": False,
        "functionsWorkerEnabled": False,
    }
    for setting, (policy, field) in _DEFAULTS.items():
        value = set_here.get(policy, DEFAULTS[policy])
        found[setting] = value[field] if field else value
    return answer({name: _as_text(value) for name, value in found.items()})


async def start_settings(request: web.Request) -> web.Response:
    """The settings of the cluster's start, and where each value comes from."""
    return answer(
        [
            {"name": name, "value": value, "source": source}
            for name, value, source in actor_system_of(request).config.given
        ]
    )


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


async def dynamic_names(request: web.Request) -> web.Response:
    """The dynamic settings, always none: policies of the cluster take their place."""
    return answer([])


async def dynamic_values(request: web.Request) -> web.Response:
    """The values of the dynamic settings, always none: policies of the cluster take their place."""
    return answer({})


async def internal_configuration(request: web.Request) -> web.Response:
    """Pulsar's metadata stores, always none: the catalog is an actor."""
    names = (
        "metadataStoreUrl",
        "configurationMetadataStoreUrl",
        "ledgersRootPath",
        "bookkeeperMetadataServiceUri",
        "stateStorageServiceUrl",
    )
    return answer(dict.fromkeys(names))


# -- statistics --------------------------------------------------------------------


async def topics(request: web.Request) -> web.Response:
    """Statistics of the running partitions, by namespace and bundle."""
    actor_system, found = actor_system_of(request), dict[str, Any]()
    for key, raw in (await _running(request)).items():
        bundles = found.setdefault(f"{key.tenant}/{key.namespace}", {})
        kinds = bundles.setdefault(WHOLE_RANGE, {"persistent": {}})
        stats = topic_stats(raw, await ledger_sizes(actor_system, key))
        kinds["persistent"][str(key.topic_name)] = stats
    return answer(found)


async def _running(request: web.Request) -> dict[ActorKey, Any]:
    found = await actor_system_of(request).survey(Stats, ACTOR_S)
    return {
        key: raw
        for key, raw in sorted(found.items(), key=lambda item: item[0].text())
        if key.kind is ActorKind.PARTITION and raw is not None
    }


async def load_report(request: web.Request) -> web.Response:
    """The load of this broker; Ray reports that of its machine."""
    config, clusters = actor_system_of(request).config, await ask_catalog(request, m.Clusters())
    own, running = clusters[config.name], await _running(request)
    return answer(
        {
            "loadReportType": "LocalBrokerData",
            "webServiceUrl": own["admin_url"],
            "webServiceUrlTls": own["admin_url_tls"],
            "pulsarServiceUrl": own["service_url"],
            "pulsarServiceUrlTls": own["service_url_tls"],
            "persistentTopicsEnabled": True,
            "nonPersistentTopicsEnabled": False,
            "brokerVersionString": SERVER_VERSION,
            "numTopics": len(running),
            "numProducers": sum(len(raw["producers"]) for raw in running.values()),
            "numConsumers": sum(
                len(each["consumers"])
                for raw in running.values()
                for each in raw["subscriptions"].values()
            ),
        }
    )


async def metrics(request: web.Request) -> web.Response:
    """The metrics of ``/metrics`` in Pulsar's JSON: one entry for each set of labels."""
    actor_system, names = actor_system_of(request), _chosen(given(request, NAMES))

    def keep(samples: list[Any]) -> list[Any]:
        return [sample for sample in samples if sample[0] in names]

    found = await actor_system.survey(Metrics, ACTOR_S, keep)
    samples = chain(gathered(actor_system.config.name, found), await of_disk(actor_system))
    rows = await by_labels(samples, names)
    return web.Response(body=msgspec.json.encode(rows), content_type=JSON)


def _chosen(names: str) -> Container[str]:
    """The metrics of these names; without any, all but the parts of histograms: Pulsar's classes
    say the same. Raises `AdminError`."""
    chosen = set(filter(None, names.split(",")))
    if unknown := chosen - METRICS.keys():
        raise AdminError(400, f"there is no metric {min(unknown)[:80]!r}")
    return chosen or METRICS


class Leader(TypedDict):
    """The leading broker."""

    brokerId: str
    serviceUrl: str


class StartSetting(TypedDict):
    """A setting of the cluster's start: its value as text, and where the value comes from."""

    name: str
    value: str
    source: str


class OwnedNamespace(TypedDict):
    """How a broker owns a namespace's bundle."""

    broker_assignment: str
    is_controlled: bool
    is_active: bool


class LoadReport(TypedDict):
    """The load of a broker."""

    loadReportType: str
    webServiceUrl: str
    webServiceUrlTls: str
    pulsarServiceUrl: str
    pulsarServiceUrlTls: str
    persistentTopicsEnabled: bool
    nonPersistentTopicsEnabled: bool
    brokerVersionString: str
    numTopics: int
    numProducers: int
    numConsumers: int


TopicsByBundle = dict[str, dict[str, dict[str, dict[str, TopicStats]]]]
"""The statistics of topics by namespace, bundle, persistence and name."""

_BROKERS = f"{V2}/brokers"
_STATS = f"{V2}/broker-stats"

NAMES: Parameter[str] = Parameter(
    "names", str, "", "The metrics to answer, separated by commas; all of them if empty."
)

QUOTA_CHECK = Operation("GET", f"{_BROKERS}/backlog-quota-check")
"""Make partitions check their quotas now. Pulsar's method for it is GET."""

ROUTES: tuple[Route, ...] = (
    Route(reads(_BROKERS, list[str]), list_brokers),
    Route(operations.HEALTH, health),
    Route(Operation("GET", f"{_BROKERS}/ready", answers={200: str}, content=TEXT), health),
    Route(Operation("GET", f"{_BROKERS}/version", answers={200: str}, content=TEXT), version),
    Route(reads(f"{_BROKERS}/leaderBroker", Leader), leader),
    Route(QUOTA_CHECK, backlog_quota_check),
    Route(reads(f"{_BROKERS}/configuration", list[str]), dynamic_names),
    Route(reads(f"{_BROKERS}/configuration/values", Texts), dynamic_values),
    Route(reads(f"{_BROKERS}/configuration/runtime", Texts), runtime_configuration),
    Route(
        reads(f"{_BROKERS}/internal-configuration", dict[str, str | None]), internal_configuration
    ),
    Route(reads(f"{_BROKERS}/{{cluster}}", list[str]), list_brokers),
    Route(
        reads(f"{_BROKERS}/{{cluster}}/{{broker}}/ownedNamespaces", dict[str, OwnedNamespace]),
        owned_namespaces,
    ),
    Route(reads(f"{V2}/velaray/settings", list[StartSetting]), start_settings),
    Route(reads(f"{_STATS}/topics", TopicsByBundle), topics),
    Route(reads(f"{_STATS}/load-report", LoadReport), load_report),
    Route(reads(f"{_STATS}/metrics", list[LabelledMetrics], NAMES), metrics),
)
