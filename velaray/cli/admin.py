"""``velaray topics``, ``subscriptions``, ``tenants`` and ``namespaces``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from velaray.cli.common import Group, Output, time_text, with_admin
from velaray.cli.confirmation import destroys
from velaray.client.admin import Admin
from velaray.client.message_id import MessageId
from velaray.events.ids import InvalidMessageIdError
from velaray.events.ids import MessageId as StoredId

_ENDS = {"earliest": MessageId.earliest, "latest": MessageId.latest}


class MessageIdType(click.ParamType):
    """``earliest``, ``latest``, ``ledger:entry`` or the form in which Python prints an id."""

    name = "id"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> MessageId:
        """Parse the argument."""
        if value in _ENDS:
            return _ENDS[value]
        try:
            return MessageId.from_stored(StoredId.parse(value))
        except InvalidMessageIdError:
            self.fail(f"{value!r} is neither earliest, latest nor ledger:entry", param, ctx)


class TimeType(click.ParamType):
    """Milliseconds since 1970, or a date and time (UTC unless it has a time zone)."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the argument."""
        if isinstance(value, int):
            return value
        if value.isascii() and value.isdigit():
            return int(value)
        try:
            point_in_time = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is neither milliseconds nor like 2024-12-31T23:59", param, ctx)
        return round(
            (
                point_in_time if point_in_time.tzinfo else point_in_time.replace(tzinfo=UTC)
            ).timestamp()
            * 1000
        )


_force = click.option("--force", is_flag=True, help="Delete it even if clients are connected.")

# -- topics ------------------------------------------------------------------------


@click.group(cls=Group)
def topics() -> None:
    """Create, inspect and delete topics."""


@topics.command("list")
@click.argument("namespace", default="public/default")
@click.option("--deleted", is_flag=True, help="The deleted topics that can be undeleted.")
@with_admin
def list_topics(show: Output, admin: Admin, namespace: str, deleted: bool) -> None:
    """List the topics of NAMESPACE (tenant/namespace).

    \b
    Examples:
      velaray topics list public/default
      velaray topics list --deleted
    """
    if deleted:
        _list_deleted(show, admin.topics.deleted(namespace))
        return
    rows = [{"topic": name, "partitions": count} for name, count in admin.topics(namespace).items()]
    show.rows({"topic": "TOPIC", "partitions": "PARTITIONS"}, rows)


def _list_deleted(show: Output, found: list[dict[str, Any]]) -> None:
    if show.as_json:
        show.value(found)
        return
    rows = [
        {
            "topic": each["topic"],
            "partitions": each["partitions"],
            "deleted": None if each["deletedMs"] is None else time_text(each["deletedMs"]),
            "until": time_text(each["restorableUntilMs"]),
        }
        for each in found
    ]
    columns = {"topic": "TOPIC", "partitions": "PARTITIONS", "deleted": "DELETED"}
    show.rows({**columns, "until": "RESTORABLE UNTIL"}, rows)


@topics.command("create")
@click.argument("topic")
@click.option(
    "--partitions",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of partitions; 0: a topic without partitions.",
)
@with_admin
def create_topic(show: Output, admin: Admin, topic: str, partitions: int) -> None:
    """Create TOPIC.

    \b
    Example:
      velaray topics create orders --partitions 4
    """
    admin.create_topic(topic, partitions=partitions)
    show.done(f"created {topic}", created=topic, partitions=partitions)


@topics.command("delete")
@click.argument("topic")
@_force
@destroys("delete the topic {topic} with its messages and subscriptions")
@with_admin
def delete_topic(show: Output, admin: Admin, topic: str, force: bool) -> None:
    """Delete TOPIC with its messages and subscriptions.

    \b
    Example:
      velaray topics delete orders
    """
    admin.delete_topic(topic, force=force)
    show.done(f"deleted {topic}", deleted=topic)


@topics.command("undelete")
@click.argument("topic")
@with_admin
def undelete_topic(show: Output, admin: Admin, topic: str) -> None:
    """Restore a deleted TOPIC, within the cluster's --undelete-window.

    \b
    Example:
      velaray topics undelete orders
    """
    admin.undelete_topic(topic)
    show.done(f"undeleted {topic}", undeleted=topic)


@topics.command("stats")
@click.argument("topic")
@with_admin
def topic_stats(show: Output, admin: Admin, topic: str) -> None:
    """Show the backlog, the producers and the subscriptions of TOPIC.

    \b
    Example:
      velaray topics stats orders
    """
    found = admin.stats(topic)
    if show.as_json:
        show.value(found)
        return
    parts = found.get("partitions") or {topic: found}
    columns = {
        "topic": "TOPIC",
        "entries": "ENTRIES",
        "bytes": "BYTES",
        "backlog_bytes": "BACKLOG BYTES",
        "oldest_s": "OLDEST (S)",
        "pending": "TRIMMED LEDGERS",
        "publishers": "PUBLISHERS",
        "terminated": "TERMINATED",
    }
    show.rows(columns, [_topic_row(name, stats) for name, stats in parts.items()])
    columns = {
        "topic": "TOPIC",
        "subscription": "SUBSCRIPTION",
        "type": "TYPE",
        "backlog": "BACKLOG ENTRIES",
        "unacked": "UNACKED MESSAGES",
        "consumers": "CONSUMERS",
    }
    rows = [
        _subscription_row(name, subscription, each)
        for name, stats in parts.items()
        for subscription, each in stats["subscriptions"].items()
    ]
    show.rows(columns, rows)


def _topic_row(name: str, stats: dict[str, Any]) -> dict[str, Any]:
    return {
        "topic": name,
        "entries": stats["numberOfEntries"],
        "bytes": stats["storageSize"],
        "backlog_bytes": stats["backlogSize"],
        "oldest_s": stats["oldestBacklogMessageAgeSeconds"],
        "pending": stats["trimmedLedgersPending"],
        "publishers": len(stats["publishers"]),
        "terminated": stats["terminated"],
    }


def _subscription_row(topic: str, name: str, stats: dict[str, Any]) -> dict[str, Any]:
    return {
        "topic": topic,
        "subscription": name,
        "type": stats.get("type"),
        "backlog": stats["msgBacklog"],
        "unacked": stats["unackedMessages"],
        "consumers": len(stats["consumers"]),
    }


@topics.command("partitions")
@click.argument("topic")
@click.option(
    "--grow", type=click.IntRange(min=1), help="Increase the number of partitions to this."
)
@with_admin
def topic_partitions(show: Output, admin: Admin, topic: str, grow: int | None) -> None:
    """Show the number of partitions of TOPIC (0: it isn't partitioned), or add some.

    \b
    Example:
      velaray topics partitions orders --grow 8
    """
    if grow is not None:
        admin.grow_partitions(topic, grow)
    count = admin.partitions(topic)
    show.rows(
        {"topic": "TOPIC", "partitions": "PARTITIONS"}, [{"topic": topic, "partitions": count}]
    )


@topics.command("terminate")
@click.argument("topic")
@destroys("end the topic {topic}: it rejects new messages for ever")
@with_admin
def terminate_topic(show: Output, admin: Admin, topic: str) -> None:
    """Terminate TOPIC, which then rejects new messages, and show its last message ids.

    \b
    Example:
      velaray topics terminate orders
    """
    rows = [{"last": _id_text(last)} for last in admin.terminate(topic)]
    show.rows({"last": "LAST MESSAGE"}, rows)


def _id_text(found: MessageId) -> str:
    return f"{found.ledger_id()}:{found.entry_id()}:{found.partition()}"


@topics.command("unload")
@click.argument("topic")
@with_admin
def unload_topic(show: Output, admin: Admin, topic: str) -> None:
    """Stop TOPIC's actors; its next use starts them again.

    \b
    Example:
      velaray topics unload orders
    """
    admin.unload(topic)
    show.done(f"unloaded {topic}", unloaded=topic)


# -- subscriptions -----------------------------------------------------------------


@click.group(cls=Group)
def subscriptions() -> None:
    """Create, move, delete and inspect durable subscriptions."""


@subscriptions.command("list")
@click.argument("topic")
@with_admin
def list_subscriptions(show: Output, admin: Admin, topic: str) -> None:
    """List the subscriptions of TOPIC.

    \b
    Example:
      velaray subscriptions list orders
    """
    rows = [{"subscription": name} for name in admin.subscriptions(topic)]
    show.rows({"subscription": "SUBSCRIPTION"}, rows)


@subscriptions.command("create")
@click.argument("topic")
@click.argument("subscription")
@click.option(
    "--start",
    type=MessageIdType(),
    default="latest",
    show_default=True,
    help="First message to receive: earliest, latest or ledger:entry.",
)
@with_admin
def create_subscription(
    show: Output, admin: Admin, topic: str, subscription: str, start: MessageId
) -> None:
    """Create SUBSCRIPTION on TOPIC.

    \b
    Example:
      velaray subscriptions create orders billing --start earliest
    """
    admin.create_subscription(topic, subscription, start)
    show.done(f"created {subscription} on {topic}", created=subscription, topic=topic)


@subscriptions.command("delete")
@click.argument("topic")
@click.argument("subscription")
@_force
@destroys("delete the subscription {subscription} of {topic} with its position")
@with_admin
def delete_subscription(
    show: Output, admin: Admin, topic: str, subscription: str, force: bool
) -> None:
    """Delete SUBSCRIPTION of TOPIC.

    \b
    Example:
      velaray subscriptions delete orders billing
    """
    admin.delete_subscription(topic, subscription, force=force)
    show.done(f"deleted {subscription} of {topic}", deleted=subscription, topic=topic)


@subscriptions.command("seek")
@click.argument("topic")
@click.argument("subscription")
@click.option("--to", type=MessageIdType(), help="Next message: earliest, latest or ledger:entry.")
@click.option(
    "--time", type=TimeType(), help="Next message: the first one published at or after this time."
)
@with_admin
def seek(
    show: Output,
    admin: Admin,
    topic: str,
    subscription: str,
    to: MessageId | None,
    time: int | None,
) -> None:
    """Move SUBSCRIPTION of TOPIC backward or forward.

    \b
    Example:
      velaray subscriptions seek orders billing --time 2026-01-31T12:00
    """
    if (to is None) == (time is None):
        raise click.UsageError("give --to or --time")
    target = to if to is not None else time
    assert target is not None
    admin.seek(topic, subscription, target)
    show.done(f"moved {subscription} of {topic}", moved=subscription, topic=topic)


@subscriptions.command("skip")
@click.argument("topic")
@click.argument("subscription")
@click.argument("entries", type=click.IntRange(min=1), required=False)
@click.option("--all", "everything", is_flag=True, help="Skip the whole backlog.")
@with_admin
def skip(
    show: Output,
    admin: Admin,
    topic: str,
    subscription: str,
    entries: int | None,
    everything: bool,
) -> None:
    """Acknowledge the next ENTRIES entries of each partition of TOPIC for SUBSCRIPTION.

    \b
    Example:
      velaray subscriptions skip orders billing 10
    """
    if (entries is None) != everything:
        raise click.UsageError("give a number of entries, or --all")
    admin.skip(topic, subscription, entries)
    show.done(f"skipped {entries or 'all'} of {subscription}", skipped=subscription, topic=topic)


@subscriptions.command("expire")
@click.argument("topic")
@click.argument("subscription", required=False)
@click.option(
    "--older-than",
    "seconds",
    type=click.IntRange(min=0),
    required=True,
    help="Expire messages that were published more than this many seconds ago.",
)
@with_admin
def expire(show: Output, admin: Admin, topic: str, subscription: str | None, seconds: int) -> None:
    """Expire old messages of TOPIC for SUBSCRIPTION, or for all subscriptions.

    \b
    Example:
      velaray subscriptions expire orders billing --older-than 86400
    """
    admin.expire(topic, subscription, seconds)
    whose = subscription or "all subscriptions"
    show.done(f"expired messages older than {seconds} s for {whose}", expired=whose, topic=topic)


# -- tenants and namespaces --------------------------------------------------------


@click.group(cls=Group)
def tenants() -> None:
    """Create and delete tenants, and set their home clusters."""


@tenants.command("list")
@with_admin
def list_tenants(show: Output, admin: Admin) -> None:
    """List the tenants.

    \b
    Example:
      velaray tenants list
    """
    rows = [{"tenant": name, **admin.tenant(name)} for name in admin.tenants()]
    columns = {"tenant": "TENANT", "adminRoles": "ADMIN ROLES", "allowedClusters": "CLUSTERS"}
    show.rows(columns, rows)


@tenants.command("create")
@click.argument("tenant")
@click.option("--admin-role", "roles", multiple=True, help="A role that administers it.")
@click.option(
    "--cluster", "clusters", multiple=True, help="A cluster that it may use; default: all."
)
@with_admin
def create_tenant(
    show: Output, admin: Admin, tenant: str, roles: tuple[str, ...], clusters: tuple[str, ...]
) -> None:
    """Create TENANT.

    \b
    Example:
      velaray tenants create acme --admin-role ops
    """
    admin.create_tenant(tenant, admin_roles=roles, allowed_clusters=clusters or None)
    show.done(f"created {tenant}", created=tenant)


@tenants.command("update")
@click.argument("tenant")
@click.option("--admin-role", "roles", multiple=True, help="A role that administers it.")
@click.option("--cluster", "clusters", multiple=True, help="A cluster that it may use.")
@with_admin
def update_tenant(
    show: Output, admin: Admin, tenant: str, roles: tuple[str, ...], clusters: tuple[str, ...]
) -> None:
    """Replace the roles or clusters of TENANT; options that aren't given change nothing.

    \b
    Example:
      velaray tenants update acme --admin-role ops --admin-role billing
    """
    admin.update_tenant(tenant, admin_roles=roles or None, allowed_clusters=clusters or None)
    show.done(f"updated {tenant}", updated=tenant)


@tenants.command("home")
@click.argument("tenant")
@with_admin
def show_home(show: Output, admin: Admin, tenant: str) -> None:
    """Show the home cluster of TENANT, which serves its clients.

    \b
    Example:
      velaray tenants home acme
    """
    rows = [{"tenant": tenant, "home": admin.tenant_home(tenant)}]
    show.rows({"tenant": "TENANT", "home": "HOME"}, rows)


@tenants.command("set-home")
@click.argument("tenant")
@click.argument("cluster")
@with_admin
def set_home(show: Output, admin: Admin, tenant: str, cluster: str) -> None:
    """Send TENANT's clients to CLUSTER from now on; this cluster's own name keeps them here.

    This moves no data: CLUSTER must have the tenant's data.

    \b
    Example:
      velaray tenants set-home acme west
    """
    admin.set_tenant_home(tenant, cluster)
    show.done(f"the home of {tenant} is {cluster}", tenant=tenant, home=cluster)


@tenants.command("delete")
@click.argument("tenant")
@destroys("delete the tenant {tenant}")
@with_admin
def delete_tenant(show: Output, admin: Admin, tenant: str) -> None:
    """Delete TENANT, which must have no namespaces.

    \b
    Example:
      velaray tenants delete acme
    """
    admin.delete_tenant(tenant)
    show.done(f"deleted {tenant}", deleted=tenant)


@click.group(cls=Group)
def namespaces() -> None:
    """Create and delete namespaces."""


@namespaces.command("list")
@click.argument("tenant", default="public")
@with_admin
def list_namespaces(show: Output, admin: Admin, tenant: str) -> None:
    """List the namespaces of TENANT.

    \b
    Example:
      velaray namespaces list acme
    """
    rows = [{"namespace": name} for name in admin.namespaces(tenant)]
    show.rows({"namespace": "NAMESPACE"}, rows)


@namespaces.command("create")
@click.argument("namespace")
@with_admin
def create_namespace(show: Output, admin: Admin, namespace: str) -> None:
    """Create NAMESPACE (tenant/namespace).

    \b
    Example:
      velaray namespaces create acme/orders
    """
    admin.create_namespace(namespace)
    show.done(f"created {namespace}", created=namespace)


@namespaces.command("delete")
@click.argument("namespace")
@click.option(
    "--force", is_flag=True, help="Delete all its topics, too, even if clients are connected."
)
@destroys("delete the namespace {namespace}, and with --force all its topics")
@with_admin
def delete_namespace(show: Output, admin: Admin, namespace: str, force: bool) -> None:
    """Delete NAMESPACE, which must have no topics unless --force.

    \b
    Example:
      velaray namespaces delete acme/orders --force
    """
    admin.delete_namespace(namespace, force=force)
    show.done(f"deleted {namespace}", deleted=namespace)
