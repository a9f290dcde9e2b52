"""Creates what the driver of a migration uses: the target, and the copy of the metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from velaray.actors.machine import Reason
from velaray.broker.catalog.messages import ReachCluster
from velaray.broker.catalog.migrations import Ask
from velaray.client.admin import AdminError, Unavailable
from velaray.geo.tenant_migration.migration_driver import Copy, Driver
from velaray.geo.tenant_migration.migration_target import RestTarget
from velaray.geo.tenant_migration.tenant_copy import MetadataConflict, admin_of, look_at, plan
from velaray.geo.tenant_migration.tenant_metadata import read_tenant
from velaray.topology.actor_system import ActorSystem, Unreachable
from velaray.topology.rpc import RemoteError
from velaray.topology.tls import outgoing_tls

ResultT = TypeVar("ResultT")


async def make_driver(
    actor_system: ActorSystem, catalog: Ask, migration: Mapping[str, Any]
) -> Driver:
    """The driver of ``migration``, which the catalog describes."""
    cluster, tenant = migration["target"], migration["tenant"]
    facts = await catalog(ReachCluster(cluster))
    name, tls = actor_system.config.name, outgoing_tls(actor_system.config)
    target = RestTarget(cluster, facts, name, tenant, migration["number"], tls=tls)
    return Driver(actor_system, catalog, migration, target, copier(actor_system, facts, tenant))


def copier(actor_system: ActorSystem, facts: Mapping[str, Any], tenant: str) -> Copy:
    """Copies the metadata of a tenant to another cluster."""
    admin = admin_of(facts, outgoing_tls(actor_system.config))

    async def copy(settled: bool) -> None:
        here = await read_tenant(actor_system, tenant)
        try:
            there = await in_thread(lambda: look_at(admin, tenant))
            steps = plan(here, actor_system.config.name, there, lambda name: True, settled=settled)
            for step in steps:
                await in_thread(partial(step.do, admin))
        except MetadataConflict as error:
            raise RemoteError(Reason.CONFLICT, str(error)) from error
        except Unavailable as error:
            raise Unreachable(str(error)) from error
        except AdminError as error:
            raise RemoteError(Reason.UNAVAILABLE, str(error)) from error

    return copy


async def in_thread(work: Callable[[], ResultT]) -> ResultT:
    """Run a blocking function in a thread. Cancelling waits for the thread."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
