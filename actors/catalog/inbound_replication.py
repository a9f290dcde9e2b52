"""Inbound replication (``pullFrom``): rules of the catalog's machine.

Policy ``pullFrom`` names other clusters, which must be registered; a cluster that it names can't be
deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from velaray.actors.catalog.state import Catalog, Cluster, Scope, effective_policy, topics_where
from velaray.actors.machine import Reason, Refusal
from velaray.events.ids import ActorKey

PULL_FROM = "pullFrom"


def pull_problem(state: Catalog, value: bytes) -> Refusal | None:
    """The fault of a value of policy ``pullFrom``."""
    names = json.loads(value)
    if state.own and state.own in names:
        problem = f"{state.own} is this cluster"
    elif unknown := sorted(set(names) - state.clusters.keys()):
        problem = f"no such cluster: {', '.join(unknown)}; register it first"
    else:
        return None
    return Refusal(Reason.NOT_ALLOWED, f"policy {PULL_FROM}: {problem}")


def pulling_from(state: Catalog, cluster: str) -> Iterator[Scope]:
    """The scopes whose policy pulls from a cluster."""
    for scope, values in state.policies.items():
        if PULL_FROM in values and cluster in json.loads(values[PULL_FROM]):
            yield scope


def pulled_from(state: Catalog, scope: Scope) -> dict[str, Cluster]:
    """The other clusters that a topic is pulled from, by name."""
    names = effective_policy(state, scope, PULL_FROM) or []
    return {
        name: state.clusters[name]
        for name in sorted(names)
        if name != state.own and name in state.clusters
    }


def pulled_partitions(state: Catalog) -> list[ActorKey]:
    """The partitions of all topics that are pulled from another cluster."""
    return [
        key
        for topic in topics_where(state, {PULL_FROM}, lambda scope: bool(pulled_from(state, scope)))
        for key in topic.actors()
    ]
