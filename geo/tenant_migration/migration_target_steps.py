"""The steps of a migration to this cluster, as its source requests them.

Every step but the first is refused unless this migration is expected. So late requests of a
finished migration create and delete nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from velaray.actors.catalog.migration_state import Ending
from velaray.actors.machine import Reason
from velaray.broker.garbage_collection.topic_deletion import delete_topic
from velaray.events.ids import TopicName
from velaray.geo.tenant_migration.asking import ask_catalog, partition_of, unless_gone
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import RemoteError

Args = Mapping[str, Any]


async def look(actor_system: ActorSystem, tenant: str) -> dict[str, Any]:
    """Describe the tenant and the cluster; see `migration_target.Target`."""
    found: dict[str, Any] = await ask_catalog(actor_system, "tenant_objects", tenant=tenant)
    incoming_migration = await ask_catalog(actor_system, "arrival", tenant=tenant)
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
    known = await ask_catalog(actor_system, "arrival", tenant=tenant)
    asked = (args["source"], args["migration"])
    return None if known is None or (known["source"], known["migration"]) != asked else known["end"]


async def _check_expected(actor_system: ActorSystem, tenant: str, args: Args) -> None:
    ending = await _ending(actor_system, tenant, args)
    if ending != Ending.EXPECTED:
        problem = f"this migration of tenant {tenant} isn't expected here: {ending or 'unknown'}"
        raise RemoteError(Reason.CONFLICT, problem)


async def _expect(actor_system: ActorSystem, tenant: str, args: Args) -> None:
    who = {"tenant": tenant, "source": args["source"], "migration": args["migration"]}
    await ask_catalog(actor_system, "expect_tenant", **who)


async def _newest(actor_system: ActorSystem, tenant: str, args: Args) -> dict[str, list[int]]:
    found = {}
    for topic in args["topics"]:
        origins = await actor_system.call(
            await partition_of(actor_system, tenant, topic), "origins", {}
        )
        if args["source"] in origins:
            found[topic] = origins[args["source"]]
    return found


async def _settle(actor_system: ActorSystem, tenant: str, args: Args) -> dict[str, str]:
    found = {}
    for topic in args["topics"]:
        key = await partition_of(actor_system, tenant, topic)
        if reason := await actor_system.call(key, "settle_transactions", {}):
            found[topic] = reason
    return found


def _ofpartition_of(
    method: str, *names: str
) -> Callable[[ActorSystem, str, Args], Awaitable[None]]:
    """A step that calls one partition with these arguments."""

    async def call(actor_system: ActorSystem, tenant: str, args: Args) -> None:
        key = await partition_of(actor_system, tenant, args["topic"])
        await actor_system.call(key, method, {name: args[name] for name in names})

    return call


async def _end(actor_system: ActorSystem, tenant: str, args: Args) -> None:
    if not args["stays"] and await _ending(actor_system, tenant, args) == Ending.EXPECTED:
        await _delete(actor_system, tenant, args["found"])
    who = {"tenant": tenant, "source": args["source"], "migration": args["migration"]}
    await ask_catalog(actor_system, "end_arrival", **who, stays=args["stays"])


async def _delete(actor_system: ActorSystem, tenant: str, found: list[str]) -> None:
    """Delete what the tenant has here, except for the tenant and namespaces that were ``found``
    here: those had neither topics nor policies."""
    there = await ask_catalog(actor_system, "tenant_objects", tenant=tenant)
    for topic in there["topics"]:
        await unless_gone(delete_topic(actor_system, TopicName.parse(topic), force=True))
    for namespace in there["namespaces"]:
        if namespace in found:
            for name in await ask_catalog(actor_system, "policies", namespace=namespace):
                await ask_catalog(actor_system, "remove_policy", namespace=namespace, name=name)
        else:
            gone = ask_catalog(actor_system, "delete_namespace", namespace=namespace, force=False)
            await unless_gone(gone)
    if there["tenant"] and tenant not in found:
        await unless_gone(ask_catalog(actor_system, "delete_tenant", tenant=tenant))


_STEPS: Mapping[str, Callable[[ActorSystem, str, Args], Awaitable[Any]]] = {
    "expect": _expect,
    "newest": _newest,
    "settle": _settle,
    "progress": _ofpartition_of("take_progress", "source", "parts"),
    "producers": _ofpartition_of("adopt_producers", "rows"),
    "terminate": _ofpartition_of("terminate"),
    "end": _end,
}
