"""The migrations that a catalog drives: one task for each unfinished one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from velaray.actors.catalog.migration_state import Phase
from velaray.actors.runtime import Stopped
from velaray.broker.catalog import messages as m
from velaray.broker.catalog.migrations import Ask
from velaray.geo.transient import TRANSIENT_ABROAD
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import reason_of

if TYPE_CHECKING:
    from velaray.geo.tenant_migration.migration_driver import Detail, Driver

logger = logging.getLogger("velaray")

FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 10.0
FENCE_PATIENCE_S = 60.0
"""How long a migration may fail behind the fence without progress before it is rolled back, so
that clients continue here."""
FAILED_PAUSE_S = 30.0
"""The pause after an unexpected error."""


class Migrations:
    """Drives the migrations of one activation of the catalog."""

    def __init__(self, actor_system: ActorSystem, catalog: Ask) -> None:
        self._actor_system = actor_system
        self._catalog = catalog
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._details: dict[str, Detail] = {}

    async def start(self) -> None:
        """Continue all unfinished migrations."""
        for found in await self._catalog(m.Migrations(running=True)):
            self._begin(found["tenant"])

    def stop(self) -> None:
        """Stop all drivers; migrations keep their phases."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    def changed(self, tenant: str) -> None:
        """Start a driver for a migration that began or changed its phase, if there is none."""
        task = self._tasks.get(tenant)
        if task is not None and task is asyncio.current_task():
            return  # its own driver brought it there
        self._begin(tenant)

    def _begin(self, tenant: str) -> None:
        former = self._tasks.get(tenant)
        if former is not None:
            former.cancel()
        task = asyncio.get_running_loop().create_task(self._drive(tenant, former))
        self._tasks[tenant] = task
        task.add_done_callback(lambda done: self._ended(tenant, done))

    def _ended(self, tenant: str, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._tasks.get(tenant) is not task:
            return
        del self._tasks[tenant]
        if error is None or isinstance(error, Stopped):
            return
        logger.error("the migration of tenant %s failed: %r", tenant, error)
        if tenant in self._details:
            self._details[tenant].problem = f"it failed and is retried: {error!r}"
        loop = asyncio.get_running_loop()
        loop.call_later(FAILED_PAUSE_S, self._again, tenant)

    def _again(self, tenant: str) -> None:
        if tenant not in self._tasks:
            self._begin(tenant)

    async def _drive(self, tenant: str, former: asyncio.Task[None] | None) -> None:
        loop = asyncio.get_running_loop()
        backoff, failing_since = self._actor_system.backoff(FIRST_PAUSE_S, LAST_PAUSE_S), None
        asked = m.Migration(tenant)
        while not (found := await self._catalog(asked))["over"]:
            try:
                driver = await self._driver(found)
                self._details[tenant] = driver.detail
                driver.former = former
                await driver.step()
            except TRANSIENT_ABROAD as error:
                problem = reason_of(error)
                logger.warning(
                    "the migration of tenant %s is blocked, retrying: %s", tenant, problem
                )
                self._problem(tenant, problem)
                failing_since = failing_since or loop.time()
                fenced = found["phase"] == Phase.FENCED
                if fenced and loop.time() - failing_since >= FENCE_PATIENCE_S:
                    await self._give_up(tenant, problem)
                await backoff.wait()
            else:
                backoff.reset()
                failing_since = None

    async def _give_up(self, tenant: str, problem: str) -> None:
        why = f"clients were kept away for too long: {problem}"
        with contextlib.suppress(*TRANSIENT_ABROAD):
            await self._catalog(m.RollBackMigration(tenant, why))

    def _problem(self, tenant: str, problem: str) -> None:
        from velaray.geo.tenant_migration.migration_driver import Detail

        self._details.setdefault(tenant, Detail()).problem = problem

    async def _driver(self, found: dict[str, Any]) -> Driver:
        # Imported late: only migrations need the client for other clusters.
        from velaray.geo.tenant_migration.migration_copy import make_driver

        driver = await make_driver(self._actor_system, self._catalog, found)
        known = self._details.get(found["tenant"])
        if known is not None:
            driver.detail = known
        return driver

    async def status(self, tenant: str) -> dict[str, Any]:
        """The newest migration of a tenant, with its progress."""
        found = await self._catalog(m.Migration(tenant))
        detail = self._details.get(tenant)
        told = {} if detail is None or found["over"] else asdict(detail)
        return {**found, "now_ms": self._actor_system.clock_ms(), "detail": told}
