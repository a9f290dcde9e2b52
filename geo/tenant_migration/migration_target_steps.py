"""A tenant moves to this cluster: what the other one has it do, step by step.

Every step but the first one is refused unless this very migration is expected, so whatever is
late of one that is over makes nothing here, and deletes nothing.
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


async def look(fabric: ActorSystem, tenant: str) -> dict[str, Any]:
    """What of a tenant is here, and who this is; see `migration_target.Target`."""
    found: dict[str, Any] = await ask_catalog(fabric, "whereabouts", tenant=tenant)
    arrival = await ask_catalog(fabric, "arrival", tenant=tenant)
    number = fabric.config.cluster_number
    return {"cluster": fabric.config.name, "number": number, "arrival": arrival, **found}


async def take(fabric: ActorSystem, tenant: str, step: str, args: Args) -> Any:
    """One step of a migration to here. Raises `RemoteError`: CONFLICT if that migration isn't
    expected, or not any more; and what the step raises."""
    work = _STEPS.get(step)
    if work is None:
        raise RemoteError(Reason.NOT_FOUND, f"a migration has no step {step!r}")
    if step not in ("expect", "end"):
        await _check_expected(fabric, tenant, args)
    return await work(fabric, tenant, args)


async def _ending(fabric: ActorSystem, tenant: str, args: Args) -> str | None:
    """How this migration ended; None if it isn't the one that is known here."""
    known = await ask_catalog(fabric, "arrival", tenant=tenant)
    asked = (args["source"], args["migration"])
    return None if known is None or (known["source"], known["migration"]) != asked else known["end"]


async def _check_expected(fabric: ActorSystem, tenant: str, args: Args) -> None:
    ending = await _ending(fabric, tenant, args)
    if ending != Ending.EXPECTED:
        why = f"that migration of tenant {tenant} isn't expected here: {ending or 'unknown'}"
        raise RemoteError(Reason.CONFLICT, why)


async def _expect(fabric: ActorSystem, tenant: str, args: Args) -> None:
    who = {"tenant": tenant, "source": args["source"], "migration": args["migration"]}
    await ask_catalog(fabric, "expect_tenant", **who)


async def _newest(fabric: ActorSystem, tenant: str, args: Args) -> dict[str, list[int]]:
    found = {}
    for topic in args["topics"]:
        origins = await fabric.call(await partition_of(fabric, tenant, topic), "origins", {})
        if args["source"] in origins:
            found[topic] = origins[args["source"]]
    return found


async def _settle(fabric: ActorSystem, tenant: str, args: Args) -> dict[str, str]:
    found = {}
    for topic in args["topics"]:
        key = await partition_of(fabric, tenant, topic)
        if reason := await fabric.call(key, "settle_transactions", {}):
            found[topic] = reason
    return found


def _ofpartition_of(
    method: str, *names: str
) -> Callable[[ActorSystem, str, Args], Awaitable[None]]:
    """A step that is a call of one partition, with these arguments."""

    async def call(fabric: ActorSystem, tenant: str, args: Args) -> None:
        key = await partition_of(fabric, tenant, args["topic"])
        await fabric.call(key, method, {name: args[name] for name in names})

    return call


async def _end(fabric: ActorSystem, tenant: str, args: Args) -> None:
    if not args["stays"] and await _ending(fabric, tenant, args) == Ending.EXPECTED:
        await _delete(fabric, tenant, args["found"])
    who = {"tenant": tenant, "source": args["source"], "migration": args["migration"]}
    await ask_catalog(fabric, "end_arrival", **who, stays=args["stays"])


async def _delete(fabric: ActorSystem, tenant: str, found: list[str]) -> None:
    """Delete what the tenant has here, but for itself and the namespaces that were ``found``
    here: those had neither topics nor policies."""
    there = await ask_catalog(fabric, "whereabouts", tenant=tenant)
    for topic in there["topics"]:
        await unless_gone(delete_topic(fabric, TopicName.parse(topic), force=True))
    for namespace in there["namespaces"]:
        if namespace in found:
            for name in await ask_catalog(fabric, "policies", namespace=namespace):
                await ask_catalog(fabric, "remove_policy", namespace=namespace, name=name)
        else:
            gone = ask_catalog(fabric, "delete_namespace", namespace=namespace, force=False)
            await unless_gone(gone)
    if there["tenant"] and tenant not in found:
        await unless_gone(ask_catalog(fabric, "delete_tenant", tenant=tenant))


_STEPS: Mapping[str, Callable[[ActorSystem, str, Args], Awaitable[Any]]] = {
    "expect": _expect,
    "newest": _newest,
    "settle": _settle,
    "progress": _ofpartition_of("take_progress", "source", "parts"),
    "producers": _ofpartition_of("adopt_producers", "rows"),
    "terminate": _ofpartition_of("terminate"),
    "end": _end,
}
