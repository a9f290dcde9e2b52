"""The machines of actors, and their states as plain values, for tables and JSON."""

from __future__ import annotations

import json
from typing import Any

from velaray.actors.catalog.machine import CatalogMachine
from velaray.actors.catalog.state import Catalog
from velaray.actors.coordinator.machine import CoordinatorMachine
from velaray.actors.coordinator.state import CoordinatorState
from velaray.actors.machine import Machine
from velaray.actors.partition.compacted_index import CompactedIndex, CompactedIndexMachine
from velaray.actors.partition.machine import PartitionMachine
from velaray.actors.partition.state import PartitionState
from velaray.actors.schema_registry.machine import RegistryState, SchemaRegistryMachine, Version
from velaray.actors.subscription.cursor import mask_to_words
from velaray.actors.subscription.machine import SubscriptionMachine, SubscriptionState
from velaray.broker.history import NoHistory
from velaray.events.ids import ActorKey, ActorKind
from velaray.schemas.json_form import data_text


def machine_of(key: ActorKey) -> Machine[Any]:
    """The machine whose events the journal of ``key`` holds.

    Raises `NoHistory` for actor kinds without a journal.
    """
    match key.kind:
        case ActorKind.CATALOG:
            return CatalogMachine()
        case ActorKind.PARTITION:
            return PartitionMachine()
        case ActorKind.SUBSCRIPTION:
            return SubscriptionMachine()
        case ActorKind.COMPACTED:
            return CompactedIndexMachine()
        case ActorKind.COORDINATOR:
            return CoordinatorMachine()
        case ActorKind.SCHEMA_REGISTRY:
            return SchemaRegistryMachine()
        case ActorKind.GARBAGE_COLLECTOR | ActorKind.INBOUND_REPLICATOR:
            raise NoHistory(f"a {key.kind} has no journal")


def describe(state: Any) -> dict[str, Any]:
    """``state`` as dicts, lists, numbers and strings. Raises `TypeError` for an unknown type."""
    match state:
        case Catalog():
            return _catalog(state)
        case PartitionState():
            return _partition(state)
        case SubscriptionState():
            return _subscription(state)
        case CompactedIndex():
            return {
                "horizon": state.horizon,
                "kept": len(state.offsets),
                "keptInPart": len(state.masks),
                "ledgers": [
                    {"ledgerId": ledger_id, "firstOffset": first}
                    for ledger_id, first in state.ledgers
                ],
            }
        case CoordinatorState():
            return {
                "nextSequence": state.next_sequence,
                "unfinished": {
                    str(sequence): str(known.status) for sequence, known in state.unfinished.items()
                },
                "timedOut": state.timed_out,
                "series": {name: each.last for name, each in state.series.items()},
            }
        case RegistryState():
            return {
                "liveFrom": state.live_from,
                "versions": [_version(each) for each in state.versions],
            }
    raise TypeError(f"not the state of a machine: {type(state).__name__}")


def _catalog(state: Catalog) -> dict[str, Any]:
    return {
        "clusters": {
            name: {"serviceUrl": cluster.reached_at[0], "adminUrl": cluster.reached_at[1]}
            for name, cluster in sorted(state.clusters.items())
        },
        "tenants": {
            name: {
                "adminRoles": list(tenant.admin_roles),
                "allowedClusters": list(tenant.allowed_clusters),
            }
            for name, tenant in sorted(state.tenants.items())
        },
        "namespaces": sorted("/".join(key) for key in state.namespaces),
        "topics": {
            name: {
                "partitions": topic.partitions,
                "incarnation": topic.incarnation,
                "properties": dict(topic.properties),
            }
            for _, topics in sorted(state.namespaces.items())
            for name, topic in sorted(topics.items())
        },
        "policies": {
            str(scope): {name: json.loads(value) for name, value in sorted(values.items())}
            for scope, values in sorted(state.policies.items(), key=lambda item: str(item[0]))
        },
        "nextIncarnation": state.next_incarnation,
    }


def _partition(state: PartitionState) -> dict[str, Any]:
    return {
        "firstOffset": state.first_offset,
        "endOffset": state.end_offset,
        "terminated": state.terminated,
        "topicEpoch": state.topic_epoch,
        "ledgers": [
            {"ledgerId": ledger_id, "firstOffset": first}
            for ledger_id, first in state.table.ledgers()
        ],
        "producers": {
            name: {"lastSequenceId": producer.last_sequence_id, "lastPublishMs": producer.at_ms}
            for name, producer in sorted(state.producers.items())
        },
        "subscriptions": {
            name: {
                "incarnation": found.ref.incarnation,
                "startOffset": found.ref.start_offset,
                "properties": found.properties,
            }
            for name, found in sorted(state.subscriptions.items())
        },
        "compacted": {
            "horizon": state.compactions.horizon,
            "generation": state.compactions.current.number if state.compactions.current else 0,
        },
    }


def _version(version: Version) -> dict[str, Any]:
    told = {"version": version.number, "atMs": version.at_ms, "role": version.role}
    if version.info is None:
        return {**told, "deletion": True, "forced": version.forced}
    return {
        **told,
        "type": str(version.info.type),
        "data": data_text(version.info),
        "strategy": version.strategy,
        "predecessor": version.predecessor,
    }


def _subscription(state: SubscriptionState) -> dict[str, Any]:
    cursor = state.cursor
    return {
        "created": state.created,
        "ackedBefore": cursor.acked_before,
        "ackedRanges": [list(acked_range) for acked_range in cursor.acked_ranges()],
        "partial": {
            str(offset): mask_to_words(ack_set) for offset, ack_set in cursor.all_partials()
        },
    }
