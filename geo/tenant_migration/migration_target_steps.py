"""The steps of a migration to this cluster, as its source requests them.

Every step but the first is refused unless this migration is expected. So late requests of a
finished migration create and delete nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from velaray.actors.catalog.migration_state import Ending
from velaray.actors.machine import Reason
from velaray.broker.catalog import messages as m
from velaray.broker.garbage_collection.topic_deletion import delete_topic
from velaray.broker.partition.messages import AdoptProducers, Origins, Terminate
from velaray.events.ids import TopicName
from velaray.geo.tenant_migration.asking import ask_catalog, partition_of, unless_gone
from velaray.geo.tenant_migration.messages import SettleTransactions, TakeProgress
from velaray.topology.actor_system import ActorSystem
from velaray.topology.messages import Request
from velaray.topology.rpc import RemoteError

Args = Mapping[str, Any]


async def look(actor_system: ActorSystem, tenant: str) -> dict[str, Any]:
    """Describe the tenant and the cluster; see `migration_target.Target`."""
    found = await ask_catalog(actor_system, m.TenantObjects(tenant))
    incoming_migration = await ask_catalog(actor_system, m.Arrival(tenant))
    number = actor_system.config.cluster_number
    return {
        "cluster": actor_system.config.name,
        "number": number,
        "arrival": incoming_migration,
        **found,
    }


async def take(actor_system: ActorSystem, tenant: str, step: str, args: Args) -> Any:
    """Do one step of a migration to this cluster. Raises `RemoteError`: CONFLICT if the migration
    isn't expected, or no longer; and what the step raises."""
    work = _STEPS.get(step)
    if work is None:
        raise RemoteError(Reason.NOT_FOUND, f"a migration has no step {step!r}")
    if step not in ("expect", "end"):
        await _check_expected(actor_system, tenant, args)
    return await work(actor_system, tenant, args)


async def _ending(actor_system: ActorSystem, tenant: str, args: Args) -> str | None:
    """How this migration ended; None if this cluster knows another one."""
    known = await ask_catalog(actor_system, m.Arrival(tenant))
    asked = (args["source"], args["migration"])
    return None if known is None or (known["source"], known["migration"]) != asked else known["end"]


async def _check_expected(actor_system: ActorSystem, tenant: str, args: Args) -> None:
    ending = await _ending(actor_system, tenant, args)
    if ending != Ending.EXPECTED:
        problem = f"this migration of tenant {tenant} isn't expected here: {ending or 'unknown'}"
        raise RemoteError(Reason.CONFLICT, problem)


async def _expect(actor_system: ActorSystem, tenant: str, args: Args) -> None:
    await ask_catalog(actor_system, m.ExpectTenant(tenant, args["source"], args["migration"]))


async def _newest(actor_system: ActorSystem, tenant: str, args: Args) -> dict[str, list[int]]:
    found = {}
    for topic in args["topics"]:
        key = await partition_of(actor_system, tenant, topic)
        origins = await actor_system.request(key, Origins())
        if args["source"] in origins:
            found[topic] = origins[args["source"]]
    return found


async def _settle(actor_system: ActorSystem, tenant: str, args: Args) -> dict[str, str]:
    found = {}
    for topic in args["topics"]:
        key = await partition_of(actor_system, tenant, topic)
        if reason := await actor_system.request(key, SettleTransactions()):
            found[topic] = reason
    return found


def _to_partition(
    request: Callable[[Args], Request[Any]],
) -> Callable[[ActorSystem, str, Args], Awaitable[None]]:
    """A step that sends one partition a request."""

    async def send(actor_system: ActorSystem, tenant: str, args: Args) -> None:
        key = await partition_of(actor_system, tenant, args["topic"])
        await actor_system.request(key, request(args))

    return send


async def _end(actor_system: ActorSystem, tenant: str, args: Args) -> None:
    if not args["stays"] and await _ending(actor_system, tenant, args) == Ending.EXPECTED:
        await _delete(actor_system, tenant, args["found"])
    ended = m.EndArrival(tenant, args["source"], args["migration"], args["stays"])
    await ask_catalog(actor_system, ended)


async def _delete(actor_system: ActorSystem, tenant: str, found: list[str]) -> None:
    """Delete what the tenant has here, except for the tenant and namespaces that were ``found``
    here: those had neither topics nor policies."""
    there = await ask_catalog(actor_system, m.TenantObjects(tenant))
    for topic in there["topics"]:
        await unless_gone(delete_topic(actor_system, TopicName.parse(topic), force=True))
    for namespace in there["namespaces"]:
        if namespace in found:
            for name in await ask_catalog(actor_system, m.Policies(namespace=namespace)):
                await ask_catalog(actor_system, m.RemovePolicy(name, namespace=namespace))
        else:
            await unless_gone(ask_catalog(actor_system, m.DeleteNamespace(namespace)))
    if there["tenant"] and tenant not in found:
        await unless_gone(ask_catalog(actor_system, m.DeleteTenant(tenant)))


_STEPS: Mapping[str, Callable[[ActorSystem, str, Args], Awaitable[Any]]] = {
    "expect": _expect,
    "newest": _newest,
    "settle": _settle,
    "progress": _to_partition(lambda args: TakeProgress(args["source"], args["parts"])),
    "producers": _to_partition(lambda args: AdoptProducers(args["rows"])),
    "terminate": _to_partition(lambda args: Terminate()),
    "end": _end,
}
