"""Erasable namespaces: rules of the catalog's machine.

Policy ``erasable`` is set before a namespace has topics, so no message precedes it that can't be
erased. Policies that would copy messages without their data keys can't be combined with it.
"""

from __future__ import annotations

import json
from typing import Final

from velaray.actors.catalog.inbound_replication import PULL_FROM
from velaray.actors.catalog.policies import (
    ENCRYPTION_REQUIRED,
    ERASABLE,
    NOT_ERASABLE,
    policy,
)
from velaray.actors.catalog.state import Catalog, Scope, effective_policy
from velaray.actors.machine import Reason, Refusal

_EXCLUDED: Final = {
    "replication": "messages of erasable namespaces aren't replicated",
    PULL_FROM: "messages of erasable namespaces aren't replicated",
    "compactionThreshold": "erasable topics can't be compacted",
    "deadLetter": "servers don't move dead letters of erasable topics; consumers' clients do",
    ENCRYPTION_REQUIRED: "erasable topics take no messages that are encrypted end to end",
}
"""The policies that can't be in effect in an erasable namespace, and why."""


def is_erasable(state: Catalog, tenant: str, namespace: str) -> bool:
    """Whether the messages of a namespace can be erased."""
    value = state.policies.get(Scope(tenant, namespace), {}).get(ERASABLE)
    return value is not None and json.loads(value) != NOT_ERASABLE


def erasable_problem(state: Catalog, scope: Scope, value: bytes | None) -> Refusal | None:
    """The reason why policy ``erasable`` of a namespace can't be set to a value (None: removed)."""
    tenant, namespace = scope.tenant, scope.namespace
    before = state.policies.get(scope, {}).get(ERASABLE)
    wanted = NOT_ERASABLE if value is None else json.loads(value)
    if wanted == (NOT_ERASABLE if before is None else json.loads(before)):
        return None
    deleted = (each.topic.name for each in state.deleted_topics.values())
    if state.namespaces.get((tenant, namespace)) or any(
        (name.tenant, name.namespace) == (tenant, namespace) for name in deleted
    ):
        problem = "it has topics, or deleted ones that aren't purged: change it before the first"
        return _refused(ERASABLE, f"{scope}: {problem}")
    if wanted == NOT_ERASABLE:
        return None
    if state.homes.get(tenant) or (
        tenant in state.migrations and not state.migrations[tenant].over
    ):
        return _refused(ERASABLE, f"tenant {tenant} belongs to another cluster, or moves to one")
    for name, reason in _EXCLUDED.items():
        if effective_policy(state, scope, name) != policy(name).default:
            return _refused(ERASABLE, f"policy {name} is in effect for {scope}: {reason}")
    return None


def excluded_problem(state: Catalog, scope: Scope, name: str, value: bytes) -> Refusal | None:
    """The reason why a policy can't be set, since it would hold for an erasable namespace."""
    reason = _EXCLUDED.get(name)
    if reason is None or json.loads(value) == policy(name).default:
        return None
    for tenant, namespace in sorted(state.namespaces):
        concerned = not scope.namespace or (scope.tenant, scope.namespace) == (tenant, namespace)
        if concerned and is_erasable(state, tenant, namespace):
            return _refused(name, f"namespace {tenant}/{namespace} is erasable: {reason}")
    return None


def moving_problem(state: Catalog, tenant: str) -> Refusal | None:
    """The reason why a tenant can't move to another cluster: it has an erasable namespace."""
    for owner, namespace in sorted(state.namespaces):
        if owner == tenant and is_erasable(state, owner, namespace):
            problem = (
                f"namespace {owner}/{namespace} is erasable, and can't move to another cluster"
            )
            return Refusal(Reason.NOT_ALLOWED, problem)
    return None


def _refused(name: str, problem: str) -> Refusal:
    return Refusal(Reason.NOT_ALLOWED, f"policy {name}: {problem}")
