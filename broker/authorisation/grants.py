"""Rights, and the decision whether roles have them. Pure: no clock, no other actor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from velaray.actors.catalog.state import Scope
from velaray.topology.config import AuthorisationSettings


class Right(Enum):
    """What a command, a route or a call needs. The value completes "may"."""

    CONNECT = "connect"
    """Every client that has proved a role."""
    LOOKUP = "look up"
    """Roles that may produce or consume there, the tenant's administrators, superusers."""
    PRODUCE = "produce to"
    """Roles with the action produce, the tenant's administrators, superusers."""
    CONSUME = "consume from"
    """Roles with the action consume that may use the subscription, the tenant's administrators,
    superusers."""
    ADMINISTER = "administer"
    """The tenant's administrators, superusers."""
    SUPERUSER = "act as a superuser in"
    """Superusers."""
    OPENED = "use what it opened in"
    """The connection that opened the producer or the consumer. Opening it needed a right, and it is
    closed when that right is revoked."""
    RAY = "call actors of"
    """Whoever may call Ray, and so run code as the user who started the cluster."""
    NOBODY = "be served in"
    """Nobody: the service sends the command, or doesn't support it."""


class Demand(NamedTuple):
    """A right in a tenant, a namespace or a topic; ``subscription`` "": no particular one.
    ``viewing``: through the admin interface, and without any change."""

    right: Right
    scope: Scope = Scope()
    subscription: str = ""
    viewing: bool = False

    def refusal(self, roles: Iterable[str]) -> str:
        """The text for a client that lacks the right."""
        who = " and ".join(repr(role[:200]) for role in roles)
        what = f"{self.right.value} {self.scope}"
        by = f" with subscription {self.subscription[:200]!r}" if self.subscription else ""
        return f"role {who} is not authorized to {what}{by}"


Actions = Mapping[str, Collection[str]]
"""Actions by role."""


@dataclass(frozen=True, slots=True)
class Grants:
    """What is granted in a tenant, a namespace or a topic, as the catalog answers `WatchGrants`."""

    admins: Collection[str] = ()
    namespace: Actions = field(default_factory=dict)
    topic: Actions = field(default_factory=dict)
    subscriptions: Actions = field(default_factory=dict)
    """The only roles that may use a subscription, by subscription."""
    by_prefix: bool = False

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Grants:
        """The grants in an answer of the catalog."""
        return cls(**found)

    def allow(self, role: str, right: Right, subscription: str = "") -> bool:
        """Whether a role has a right here, apart from superusers."""
        if role in self.admins:
            return right is not Right.SUPERUSER
        match right:
            case Right.PRODUCE:
                return self._may(role, "produce")
            case Right.CONSUME:
                return self._may(role, "consume") and self._may_use(role, subscription)
            case Right.LOOKUP:
                return self._may(role, "produce") or self._may(role, "consume")
        return False

    def _may(self, role: str, action: str) -> bool:
        return action in self.namespace.get(role, ()) or action in self.topic.get(role, ())

    def _may_use(self, role: str, subscription: str) -> bool:
        if not subscription:
            return True
        only = self.subscriptions.get(subscription)
        if only and role not in only:
            return False
        return not self.by_prefix or subscription.startswith(f"{role}-")


def needs_grants(
    settings: AuthorisationSettings, roles: Iterable[str], demand: Demand
) -> list[str]:
    """The roles for which the decision depends on what the catalog has granted."""
    if demand.right is Right.CONNECT:
        return []
    enough = settings.superusers | settings.viewers if demand.viewing else settings.superusers
    return [role for role in roles if role not in enough]
