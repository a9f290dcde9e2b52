"""``velaray permissions``: what roles may do in namespaces and topics."""

from __future__ import annotations

import click

from velaray.cli.common import Group, Output, with_admin
from velaray.client.admin import Admin

_ACTIONS = ("produce", "consume")


@click.group(cls=Group)
def permissions() -> None:
    """Grant and revoke what roles may do.

    WHERE is a namespace (tenant/namespace) or a topic. A role has what is granted on the namespace
    and on the topic. With --subscription, a subscription of a namespace is reserved for roles.
    """


@permissions.command("list")
@click.argument("where")
@click.option("--subscriptions", is_flag=True, help="List the reserved subscriptions instead.")
@with_admin
def list_permissions(show: Output, admin: Admin, where: str, subscriptions: bool) -> None:
    """List the roles and their actions in WHERE.

    \b
    Example:
      velaray permissions list public/default
    """
    if subscriptions:
        found = admin.permissions.of_subscriptions(where)
        first, columns = "subscription", {"subscription": "SUBSCRIPTION", "roles": "ROLES"}
        second = "roles"
    else:
        found = admin.permissions(where)
        first, columns = "role", {"role": "ROLE", "actions": "ACTIONS"}
        second = "actions"
    show.rows(columns, [{first: name, second: found[name]} for name in sorted(found)])


@permissions.command()
@click.argument("where")
@click.argument("role")
@click.option(
    "--actions",
    default=",".join(_ACTIONS),
    show_default=True,
    help="Actions that the role may take, separated by commas.",
)
@click.option("--subscription", help="Reserve this subscription of WHERE for ROLE instead.")
@with_admin
def grant(
    show: Output, admin: Admin, where: str, role: str, actions: str, subscription: str | None
) -> None:
    """Let ROLE produce and consume in WHERE, in place of what it was granted there before.

    \b
    Example:
      velaray permissions grant public/default app --actions consume
    """
    if subscription is not None:
        admin.permissions.grant_subscription(where, subscription, [role])
        facts = {"role": role, "where": where, "subscription": subscription}
        show.done(f"reserved {subscription} of {where} for {role}", **facts)
        return
    wanted = [each for each in actions.split(",") if each]
    if not wanted:
        raise click.UsageError("name an action, or revoke what was granted")
    admin.permissions.grant(where, role, wanted)
    show.done(
        f"granted {', '.join(wanted)} in {where} to {role}", role=role, where=where, actions=wanted
    )


@permissions.command()
@click.argument("where")
@click.argument("role")
@click.option("--subscription", help="End the reservation of this subscription for ROLE instead.")
@with_admin
def revoke(show: Output, admin: Admin, where: str, role: str, subscription: str | None) -> None:
    """Take back what ROLE was granted in WHERE. Its producers and consumers are closed.

    \b
    Example:
      velaray permissions revoke public/default app
    """
    if subscription is not None:
        admin.permissions.revoke_subscription(where, subscription, role)
        facts = {"role": role, "where": where, "subscription": subscription}
        show.done(f"{subscription} of {where} is not reserved for {role} any more", **facts)
        return
    admin.permissions.revoke(where, role)
    show.done(f"revoked what {role} was granted in {where}", role=role, where=where)
