"""Grants of rights to roles: changes of the policies that hold them, one role at a time.

Each command reads the policy and decides on its new value, so grants at the same time don't undo
each other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from velaray.actors.catalog.policies import (
    ACTIONS,
    BY_PREFIX,
    PERMISSIONS,
    SUBSCRIPTION_AUTH_MODE,
    SUBSCRIPTION_PERMISSIONS,
    InvalidPolicyError,
)
from velaray.actors.catalog.state import Catalog, Scope, own_policies

GRANT_POLICIES = frozenset({PERMISSIONS, SUBSCRIPTION_PERMISSIONS, SUBSCRIPTION_AUTH_MODE})
"""The policies on which the rights of roles depend."""


@dataclass(frozen=True, slots=True)
class GrantActions:
    """Let a role take these actions, and no others, on a namespace or a topic. Replies `Done`."""

    scope: Scope
    role: str
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RevokeActions:
    """Let a role take no action on a namespace or a topic. Replies `Done`."""

    scope: Scope
    role: str


@dataclass(frozen=True, slots=True)
class GrantSubscription:
    """Let only these roles, and those of earlier grants, use a subscription. Replies `Done`."""

    scope: Scope
    subscription: str
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RevokeSubscription:
    """Take a role off the list of a subscription. The last one ends the list. Replies `Done`."""

    scope: Scope
    subscription: str
    role: str


GrantCommand = GrantActions | RevokeActions | GrantSubscription | RevokeSubscription


def changed_policy(state: Catalog, command: GrantCommand) -> tuple[str, bytes | None]:
    """The policy that a command changes, and its new value; None: it isn't set any more.

    Raises `InvalidPolicyError`.
    """
    own = own_policies(state, command.scope)
    match command:
        case GrantActions(_, role, actions):
            name, entry = PERMISSIONS, _named("role", role)
            value = [action for action in ACTIONS if action in actions]
            if unknown := sorted({*actions} - {*ACTIONS}):
                raise InvalidPolicyError(
                    f"unknown action {unknown[0][:40]!r}; known are {', '.join(ACTIONS)}"
                )
        case RevokeActions(_, role):
            name, entry, value = PERMISSIONS, role, []
        case GrantSubscription(_, subscription, roles):
            name, entry = SUBSCRIPTION_PERMISSIONS, _named("subscription", subscription)
            present = (own.get(name) or {}).get(entry, [])
            value = sorted({*present, *(_named("role", each) for each in roles)})
        case RevokeSubscription(_, subscription, role):
            name, entry = SUBSCRIPTION_PERMISSIONS, subscription
            present = (own.get(name) or {}).get(entry, [])
            value = [each for each in present if each != role]
    values: dict[str, Any] = {**(own.get(name) or {}), entry: value}
    if not value:
        del values[entry]
    return name, json.dumps(values).encode() if values else None


def _named(what: str, name: str) -> str:
    if not name.strip():
        raise InvalidPolicyError(f"name the {what}")
    return name


def grants_at(state: Catalog, scope: Scope) -> dict[str, Any]:
    """What is granted in a tenant, a namespace or a topic; empty where nothing is.

    A tenant's scope has only its name.
    """
    tenant = state.tenants.get(scope.tenant)
    whole = own_policies(state, Scope(scope.tenant, scope.namespace)) if scope.namespace else {}
    topic = own_policies(state, scope) if scope.topic else {}
    return {
        "admins": [] if tenant is None else list(tenant.admin_roles),
        "namespace": whole.get(PERMISSIONS) or {},
        "topic": topic.get(PERMISSIONS) or {},
        "subscriptions": whole.get(SUBSCRIPTION_PERMISSIONS) or {},
        "by_prefix": whole.get(SUBSCRIPTION_AUTH_MODE) == BY_PREFIX,
    }
