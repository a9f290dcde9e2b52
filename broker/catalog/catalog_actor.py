"""The catalog's body: its machine behind a link server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from velaray.actors.catalog import machine as commands
from velaray.actors.catalog import state as queries
from velaray.actors.catalog.clusters import (
    DeleteCluster,
    MeetCluster,
    RegisterCluster,
    SetTenantHome,
    UpdateCluster,
    elsewhere,
    home_of,
    remotes_of,
    replicated_partitions,
    replication_problem,
)
from velaray.actors.catalog.deleted_topics import BeginPurge, EndPurge, UndeleteTopic
from velaray.actors.catalog.inbound_replication import pulled_from, pulled_partitions
from velaray.actors.catalog.machine import CatalogMachine, Done, Ensured
from velaray.actors.catalog.state import Catalog, Cluster, Progress, Scope, Topic
from velaray.actors.machine import Reason, Refusal
from velaray.broker.catalog import catalog_moves
from velaray.broker.catalog.catalog_moves import MakeMigrations
from velaray.broker.catalog.scheduled_activation import ScheduledActivation
from velaray.broker.garbage_collection.topic_deletion import sweep_topic
from velaray.broker.journaled_actor import JournaledActor
from velaray.broker.policy_watch import Watchers
from velaray.broker.topic_policies import TopicPolicies
from velaray.events.ids import ActorKey, InvalidNameError, TopicName
from velaray.topology.actor_system import ActorSystem, Address
from velaray.topology.rpc import RemoteError, RpcConnection
from velaray.topology.transient import TRANSIENT_OR_STORE


def _scope(args: dict[str, Any]) -> Scope:
    if args.get("topic"):
        return Scope.of_topic(TopicName.parse(args["topic"]))
    if args.get("namespace"):
        tenant, _, namespace = args["namespace"].partition("/")
        return Scope(tenant, namespace)
    return queries.CLUSTER


def _topic(args: dict[str, Any]) -> TopicName:
    return TopicName.parse(args["topic"])


def _namespace(args: dict[str, Any]) -> tuple[str, str]:
    tenant, _, namespace = args["namespace"].partition("/")
    return tenant, namespace


def _describe(topic: Topic) -> dict[str, Any]:
    return {
        "topic": str(topic.name),
        "partitions": topic.partitions,
        "incarnation": topic.incarnation,
        "properties": dict(topic.properties),
    }


_COMMANDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "bootstrap": lambda a: commands.Bootstrap(a["cluster"], a["service_url"], a["admin_url"]),
    "register_cluster": lambda a: RegisterCluster(
        a["cluster"],
        a["service_url"],
        a["admin_url"],
        a.get("token", ""),
        a.get("progress", Progress.EXACT),
    ),
    "update_cluster": lambda a: UpdateCluster(
        a["cluster"],
        a.get("service_url"),
        a.get("admin_url"),
        a.get("token"),
        a.get("progress"),
    ),
    "meet_cluster": lambda a: MeetCluster(a["cluster"], a["data_id"]),
    "delete_cluster": lambda a: DeleteCluster(a["cluster"]),
    "set_home": lambda a: SetTenantHome(a["tenant"], a["cluster"]),
    "create_tenant": lambda a: commands.CreateTenant(
        a["tenant"], tuple(a.get("admin_roles", ())), tuple(a.get("allowed_clusters", ()))
    ),
    "update_tenant": lambda a: commands.UpdateTenant(
        a["tenant"], tuple(a.get("admin_roles", ())), tuple(a.get("allowed_clusters", ()))
    ),
    "delete_tenant": lambda a: commands.DeleteTenant(a["tenant"]),
    "create_namespace": lambda a: commands.CreateNamespace(*_namespace(a)),
    "delete_namespace": lambda a: commands.DeleteNamespace(
        *_namespace(a), a.get("force", False), a.get("window_ms", 0)
    ),
    "create_topic": lambda a: commands.CreateTopic(
        _topic(a), a.get("partitions", 0), a.get("properties", {}), a.get("exist_ok", False)
    ),
    "ensure_topic": lambda a: commands.EnsureTopic(_topic(a), a.get("at_home", False)),
    "grow_partitions": lambda a: commands.GrowPartitions(_topic(a), a["partitions"]),
    "set_topic_properties": lambda a: commands.SetTopicProperties(
        _topic(a), a.get("properties", {}), tuple(a.get("removed", ()))
    ),
    "delete_topic": lambda a: commands.DeleteTopic(
        _topic(a), a.get("incarnation", 0), a.get("window_ms", 0)
    ),
    "undelete_topic": lambda a: UndeleteTopic(_topic(a)),
    "begin_burial": lambda a: BeginPurge(a["incarnation"]),
    "end_burial": lambda a: EndPurge(a["incarnation"]),
    "set_policy": lambda a: commands.SetPolicy(_scope(a), a["name"], a["value"]),
    "remove_policy": lambda a: commands.RemovePolicy(_scope(a), a["name"]),
    **catalog_moves.COMMANDS,
}


def _clusters(state: Catalog, args: dict[str, Any]) -> Any:
    """What may be shown of every cluster."""
    return {
        name: {
            "service_url": cluster.service_url,
            "admin_url": cluster.admin_url,
            "has_token": bool(cluster.token),
            "progress": cluster.progress,
            "own": name == state.own,
        }
        for name, cluster in sorted(state.clusters.items())
    }


def _reached(cluster: Cluster) -> dict[str, Any]:
    """What an actor must know to talk to a cluster, the token included."""
    return {
        "service_url": cluster.service_url,
        "admin_url": cluster.admin_url,
        "token": cluster.token or None,
    }


def _home(state: Catalog, args: dict[str, Any]) -> Any:
    """The cluster where a tenant is at home, and how to talk to it; None: here."""
    name = home_of(state, args["tenant"])
    return None if name is None else {"cluster": name, **_reached(state.clusters[name])}


def _may_replicate(state: Catalog, args: dict[str, Any]) -> Any:
    """Return if a namespace of a tenant could have this policy ``replication``."""
    if args["tenant"] not in state.tenants:
        raise RemoteError(Reason.NOT_FOUND, f"no tenant {args['tenant']!r}")
    if refusal := replication_problem(state, args["tenant"], args["value"]):
        raise RemoteError(refusal.reason, refusal.message)


def _homes(state: Catalog, args: dict[str, Any]) -> Any:
    """The clusters of all tenants that are at home elsewhere."""
    return dict(sorted(state.homes.items()))


def _tenants(state: Catalog, args: dict[str, Any]) -> Any:
    return {
        name: {
            "admin_roles": list(state.tenants[name].admin_roles),
            "allowed_clusters": list(state.tenants[name].allowed_clusters),
        }
        for name in queries.tenants(state)
    }


def _namespaces(state: Catalog, args: dict[str, Any]) -> Any:
    if args["tenant"] not in state.tenants:
        raise RemoteError(Reason.NOT_FOUND, f"no tenant {args['tenant']!r}")
    return [f"{args['tenant']}/{name}" for name in queries.namespaces(state, args["tenant"])]


def _check_at_home(state: Catalog, tenant: str, args: dict[str, Any]) -> None:
    """Of one that is asked ``at_home``: raise `RemoteError` (ELSEWHERE) unless it is."""
    if args.get("at_home") and (refusal := elsewhere(state, tenant)):
        raise RemoteError(refusal.reason, refusal.message)


def _topics(state: Catalog, args: dict[str, Any]) -> Any:
    tenant, namespace = _namespace(args)
    _check_at_home(state, tenant, args)
    if not queries.exists(state, Scope(tenant, namespace)):
        raise RemoteError(Reason.NOT_FOUND, f"no namespace {args['namespace']!r}")
    found = queries.topics(state, tenant, namespace)
    if args.get("partitions"):
        return [str(key.topic_name) for topic in found for key in topic.actors()]
    return [_describe(topic) for topic in found]


def _one_topic(state: Catalog, args: dict[str, Any]) -> Any:
    _check_at_home(state, _topic(args).tenant, args)
    topic = queries.find_topic(state, _topic(args))
    if topic is None:
        if problem := commands.unsupported(_topic(args)):
            raise RemoteError(Reason.NOT_ALLOWED, problem)
        raise RemoteError(Reason.NOT_FOUND, f"no topic {args['topic']}")
    return _describe(topic)


def _serving(state: Catalog, args: dict[str, Any]) -> Any:
    """What a partition must know to serve; NOT_FOUND for a deleted topic's partition."""
    name = _topic(args)
    topic = queries.find_topic(state, name)
    if topic is None or topic.incarnation != args["incarnation"]:
        raise RemoteError(Reason.NOT_FOUND, f"{name} was deleted")
    scope = Scope.of_topic(name)
    return {
        "policies": queries.effective_policies(state, scope),
        "replication": {
            remote: {
                **_reached(cluster),
                "progress": cluster.progress,
                "all_subscriptions": False,
            }
            for remote, cluster in remotes_of(state, scope).items()
        }
        | catalog_moves.moving_to(state, name.tenant),
        "pull": {
            remote: _reached(cluster) for remote, cluster in pulled_from(state, scope).items()
        },
        "home": home_of(state, name.tenant),
    }


def _policies(state: Catalog, args: dict[str, Any]) -> Any:
    scope = _scope(args)
    if not queries.exists(state, scope):
        raise RemoteError(Reason.NOT_FOUND, f"there is no {scope}")
    if args.get("effective"):
        return {name: queries.effective_policy(state, scope, name) for name in args["effective"]}
    return dict(queries.own_policies(state, scope))


def _graves(state: Catalog, args: dict[str, Any]) -> Any:
    """The deleted topics of a name, or all, that aren't buried; ``due``: they may be."""
    name = _topic(args).topic if args.get("topic") else None
    return [
        {
            **_describe(grave.topic),
            "begun": grave.begun,
            "until_ms": grave.until_ms,
            "due": grave.begun or grave.until_ms <= args["now_ms"],
        }
        for _, grave in sorted(state.graves.items())
        if name is None or grave.topic.name == name
    ]


def _partitions(state: Catalog) -> list[tuple[ActorKey, TopicPolicies]]:
    """The partitions of all topics, with what holds for them."""
    return [
        (key, TopicPolicies.of(queries.effective_policies(state, Scope.of_topic(topic.name))))
        for inside in state.namespaces.values()
        for topic in inside.values()
        for key in topic.actors()
    ]


_QUERIES: dict[str, Callable[[Catalog, dict[str, Any]], Any]] = {
    "clusters": _clusters,
    "home": _home,
    "homes": _homes,
    "may_replicate": _may_replicate,
    "tenants": _tenants,
    "namespaces": _namespaces,
    "topics": _topics,
    "topic": _one_topic,
    "serving": _serving,
    "policies": _policies,
    "graves": _graves,
    **catalog_moves.QUERIES,
}

PULL_WAKE_S = 2.0
FIRST_BACKOFF_S = 0.5
_POLICY_COMMANDS = frozenset({"set_policy", "remove_policy"})
_CLUSTER_COMMANDS = frozenset({"update_cluster"})
_TENANT_COMMANDS = frozenset({"update_tenant", "set_home", "expect_tenant", "end_arrival"})
_MOVES = frozenset({"begin_migration", "advance_migration", "roll_back_migration"})
_CERTAIN = frozenset({"topic", "serving", "graves"})
"""Queries on whose answers journals are deleted: a superseded catalog doesn't answer them."""


class CatalogActor(JournaledActor):
    """Serves the catalog's commands and queries to the cluster's other actors."""

    def __init__(self, key: ActorKey, fabric: ActorSystem, make_migrations: MakeMigrations) -> None:
        super().__init__(key, fabric, CatalogMachine())
        self._watchers = Watchers()
        self.waker = ScheduledActivation(fabric)
        self.migrations = make_migrations(fabric, self.call)

    async def start(self) -> Address:
        """Recover, listen, and go on with what former activations began: burials, migrations."""
        address = await super().start()
        self.spawn(self._bury())
        self.spawn(self._wake())
        self.spawn(self._keep_pulling())
        self.spawn(self._resume_replication())
        await self.migrations.start()
        return address

    async def _resume_replication(self) -> None:
        """Have every partition run for once that is replicated and doesn't run: the whole cluster
        may have ended with a backlog for other clusters. Those that have none sleep again."""
        await asyncio.sleep(PULL_WAKE_S)
        left = await self.runtime.read(replicated_partitions)
        backoff = self.fabric.backoff(FIRST_BACKOFF_S)
        while left:
            watching, failed = self._watchers.partitions(), []
            for key in left:
                try:
                    if key.topic_name not in watching:
                        await self._describe_if_used(key)
                except TRANSIENT_OR_STORE:
                    failed.append(key)
            left = failed
            await backoff.wait()

    async def _describe_if_used(self, key: ActorKey) -> None:
        if await self.fabric.store.list_ledgers(key.text()):
            await self.fabric.ask(key, "describe", {})

    async def _keep_pulling(self) -> None:
        """Have the partitions run that are pulled from another cluster, whatever became of them:
        nobody else needs them. Those that run watch their policies."""
        while True:
            await asyncio.sleep(PULL_WAKE_S)
            watching = self._watchers.partitions()
            for key in await self.runtime.read(pulled_partitions):
                if key.topic_name not in watching:
                    with contextlib.suppress(*TRANSIENT_OR_STORE):  # they are tried again
                        await self.fabric.ask(key, "describe", {})

    async def stop(self) -> None:
        """Leave migrations to the next activation, then as every body."""
        self.migrations.stop()
        await super().stop()

    def abort(self) -> None:
        """As a crash would."""
        self.migrations.stop()
        super().abort()

    async def _wake(self) -> None:
        while True:
            await asyncio.sleep(self.config.wake_s)
            await self.waker.once(await self.runtime.read(_partitions))

    async def _bury(self) -> None:
        backoff = self.fabric.backoff(FIRST_BACKOFF_S)
        while True:
            try:
                graves = await self.call("graves", {})
                for name in sorted({grave["topic"] for grave in graves if grave["due"]}):
                    await sweep_topic(self.fabric, TopicName.parse(name))
            except TRANSIENT_OR_STORE:
                await backoff.wait()
            else:
                backoff.reset()
                await asyncio.sleep(self.config.upkeep_s)

    async def on_request(self, link: RpcConnection, method: str, args: Any) -> Any:
        """Calls; and ``watch``: answered as ``serving``, and told of changes from now on."""
        if method == "watch":
            self._watchers.add(link, _topic(args))
            return await self.call("serving", args)
        return await self.call(method, args)

    def on_link_closed(self, link: RpcConnection) -> None:
        """Whoever was behind it asks again over another one."""
        self._watchers.remove(link)

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """Answer a command or a query; see the tables of this module."""
        try:
            if method == "migration_status":
                return await self.migrations.status(args["tenant"])
            if method in _QUERIES:
                query = _QUERIES[method]
                args = {**args, "now_ms": self.fabric.clock_ms()}
                read = self.read_certain if method in _CERTAIN else self.runtime.read
                return await read(lambda state: query(state, args))
            build = _COMMANDS.get(method)
            if build is None:
                return await super().call(method, args)
            reply = await self.runtime.ask(build(args))
        except InvalidNameError as error:
            raise RemoteError(Reason.INVALID, str(error)) from error
        match reply:
            case Refusal(reason, message):
                raise RemoteError(reason, message)
            case Ensured(topic, created):
                return {**_describe(topic), "created": created}
            case Done(changed):
                if changed:
                    self._tell(method, args)
                return {"changed": changed}
        raise TypeError(f"unexpected reply {reply!r} to {method}")

    def _tell(self, method: str, args: dict[str, Any]) -> None:
        """Have those ask again who apply what was changed."""
        if method in _POLICY_COMMANDS:
            self._watchers.tell(_scope(args))
        elif method in _CLUSTER_COMMANDS:
            self._watchers.tell(queries.CLUSTER)
        elif method in _TENANT_COMMANDS:
            self._watchers.tell_tenant(args["tenant"])
        elif method in _MOVES:
            self._watchers.tell_tenant(args["tenant"])
            self.migrations.changed(args["tenant"])

    def idle(self) -> bool:
        """Never: lookups need it at once."""
        return False
