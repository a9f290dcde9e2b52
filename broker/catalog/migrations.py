"""The protocol by which the catalog uses the driver of tenant migrations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from velaray.topology.actor_system import ActorSystem
from velaray.topology.messages import ReplyT, Request


class Ask(Protocol):
    """Asks the catalog."""

    async def __call__(self, request: Request[ReplyT]) -> ReplyT:
        """Return the answer. Raises `RemoteError`."""


class Migrations(Protocol):
    """Drives the tenants' migrations that the catalog records (`velaray.geo.tenant_migration`)."""

    async def start(self) -> None:
        """Continue all migrations that aren't over."""

    def stop(self) -> None:
        """Stop driving them; the next activation of the catalog continues."""

    def changed(self, tenant: str) -> None:
        """Note that the tenant's migration began or is in another phase."""

    async def status(self, tenant: str) -> dict[str, Any]:
        """Return what is known of the tenant's newest migration."""


MakeMigrations = Callable[[ActorSystem, Ask], Migrations]
"""Makes them from the actor system and the catalog's `handle`."""
