"""The administration client: one object for each kind of resource, and a method for each call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Concatenate, ParamSpec, TypeVar
from warnings import warn

from velaray.client.admin.clusters import Clusters
from velaray.client.admin.connection import AdminConnection
from velaray.client.admin.hosts import Hosts
from velaray.client.admin.ledgers import Ledgers
from velaray.client.admin.migrations import FailOvers, Migrations, Pulls
from velaray.client.admin.namespaces import Namespaces, Policies
from velaray.client.admin.schemas import Schemas
from velaray.client.admin.subscriptions import Subscriptions
from velaray.client.admin.tenants import Tenants
from velaray.client.admin.topics import Topics
from velaray.client.admin.transactions import Transactions

GroupT = TypeVar("GroupT")
ResultT = TypeVar("ResultT")
P = ParamSpec("P")


def _deprecated(name: str, call: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """``call`` under an old name, with a warning that tells the new one."""

    @wraps(call)
    def warning(*args: P.args, **kwargs: P.kwargs) -> ResultT:
        warn(f"this method is now called {name}", DeprecationWarning, stacklevel=2)
        return call(*args, **kwargs)

    return warning


def _call(
    group: Callable[[AdminConnection], GroupT], method: Callable[Concatenate[GroupT, P], ResultT]
) -> Callable[Concatenate[AdminConnection, P], ResultT]:
    """Return a method of `Admin` that calls ``method`` of a resource's class."""

    @wraps(method)
    def call(self: AdminConnection, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        return method(group(self), *args, **kwargs)

    return call


class Admin(AdminConnection):
    """A cluster's admin interface.

    Each kind of resource has an object, such as ``admin.topics``. Calling the object lists the
    resources: ``admin.topics()``. Its methods change them: ``admin.topics.create("flights")``.
    Each of these methods is also a method of `Admin`: ``admin.create_topic("flights")``.

    Every method raises an `AdminError`: `NotFound`, `Conflict`, `NotAllowed`,
    `PreconditionFailed`, `Invalid`, `Unauthorized` or `Unavailable` where those fit. After
    `Unavailable` a change may have taken effect. Every call except `skip` can be repeated safely.

    The short name ``flights`` stands for ``persistent://public/default/flights``. The name of a
    partition stands for that partition alone. A tenant's home cluster answers questions about the
    tenant's partitions, topics and schemas.
    """

    clusters = cached_property(Clusters)
    tenants = cached_property(Tenants)
    migrations = cached_property(Migrations)
    pulls = cached_property(Pulls)
    failovers = cached_property(FailOvers)
    namespaces = cached_property(Namespaces)
    policies = cached_property(Policies)
    topics = cached_property(Topics)
    subscriptions = cached_property(Subscriptions)
    schemas = cached_property(Schemas)
    transactions = cached_property(Transactions)
    ledgers = cached_property(Ledgers)
    hosts = cached_property(Hosts)

    health = _call(Clusters, Clusters.health)
    cluster_names = _call(Clusters, Clusters.names)
    cluster = _call(Clusters, Clusters.get)
    create_cluster = _call(Clusters, Clusters.create)
    update_cluster = _call(Clusters, Clusters.update)
    delete_cluster = _call(Clusters, Clusters.delete)
    replication = _call(Clusters, Clusters.replication)
    give_up = _call(Clusters, Clusters.give_up)

    tenant = _call(Tenants, Tenants.get)
    create_tenant = _call(Tenants, Tenants.create)
    update_tenant = _call(Tenants, Tenants.update)
    delete_tenant = _call(Tenants, Tenants.delete)
    tenant_metadata = _call(Tenants, Tenants.metadata)
    tenant_home = _call(Tenants, Tenants.home)
    set_tenant_home = _call(Tenants, Tenants.set_home)

    examine_migration = _call(Migrations, Migrations.examine)
    migrate_tenant = _call(Migrations, Migrations.start)
    migration = _call(Migrations, Migrations.get)
    roll_back_migration = _call(Migrations, Migrations.roll_back)
    pull_tenant = _call(Pulls, Pulls.start)
    finish_pull = _call(Pulls, Pulls.finish)
    fail_over_tenant = _call(FailOvers, FailOvers.start)
    received_from = _call(FailOvers, FailOvers.received)

    create_namespace = _call(Namespaces, Namespaces.create)
    delete_namespace = _call(Namespaces, Namespaces.delete)
    policy = _call(Policies, Policies.get)
    set_policy = _call(Policies, Policies.set)
    remove_policy = _call(Policies, Policies.remove)
    policies_of = _call(Policies, Policies.get_all)
    set_policy_of = _call(Policies, Policies.set_on)
    remove_policy_of = _call(Policies, Policies.remove_from)

    create_topic = _call(Topics, Topics.create)
    delete_topic = _call(Topics, Topics.delete)
    undelete_topic = _call(Topics, Topics.undelete)
    partitions = _call(Topics, Topics.partitions)
    grow_partitions = _call(Topics, Topics.grow)
    stats = _call(Topics, Topics.stats)
    internal_stats = _call(Topics, Topics.internal_stats)
    last_message_id = _call(Topics, Topics.last_message_id)
    terminate = _call(Topics, Topics.terminate)
    compact = _call(Topics, Topics.compact)
    compaction_status = _call(Topics, Topics.compaction_status)
    unload = _call(Topics, Topics.unload)

    create_subscription = _call(Subscriptions, Subscriptions.create)
    delete_subscription = _call(Subscriptions, Subscriptions.delete)
    seek = _call(Subscriptions, Subscriptions.seek)
    skip = _call(Subscriptions, Subscriptions.skip)
    describe_subscription = _call(Subscriptions, Subscriptions.describe)
    expire = _call(Subscriptions, Subscriptions.expire)
    explain = _call(Subscriptions, Subscriptions.explain)
    why = _deprecated("explain", explain)
    undo = _call(Subscriptions, Subscriptions.undo)
    peek = _call(Subscriptions, Subscriptions.peek)

    schema = _call(Schemas, Schemas.get)
    upload_schema = _call(Schemas, Schemas.upload)
    check_schema = _call(Schemas, Schemas.check)
    delete_schema = _call(Schemas, Schemas.delete)

    transaction = _call(Transactions, Transactions.get)
    abort_transaction = _call(Transactions, Transactions.abort)
    coordinators = _call(Transactions, Transactions.coordinators)
    scale_coordinators = _call(Transactions, Transactions.scale_coordinators)
    transaction_buffer_stats = _call(Transactions, Transactions.buffer_stats)
    pending_ack_stats = _call(Transactions, Transactions.pending_ack_stats)

    move_to_host = _call(Hosts, Hosts.move)
    drain_host = _call(Hosts, Hosts.drain)
    resume_host = _call(Hosts, Hosts.resume)
    restart_host = _call(Hosts, Hosts.restart)

    ledger_audit = _call(Ledgers, Ledgers.audit)
    ledger_census = _deprecated("ledger_audit", ledger_audit)
    repair_ledgers = _call(Ledgers, Ledgers.repair)
    ledger = _call(Ledgers, Ledgers.get)
    dead_ledgers = _call(Ledgers, Ledgers.dead)
    retry_dead_ledgers = _call(Ledgers, Ledgers.retry_dead)
    forget_dead_ledgers = _call(Ledgers, Ledgers.forget_dead)
