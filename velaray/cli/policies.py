"""``velaray policies``: the policies of the cluster, a namespace or a topic."""

from __future__ import annotations

import json
from typing import Any

import click

from velaray.cli.common import Group, Output, with_admin
from velaray.client.admin import Admin

_where = click.argument("where", default="cluster")


@click.group(cls=Group)
def policies() -> None:
    """Read, set and remove policies of the cluster, a namespace or a topic.

    WHERE is "cluster", a namespace (tenant/namespace) or a topic. A topic's policies override its
    namespace's, which override the cluster's. Running topics apply a change at once.
    """


@policies.command("list")
@_where
@click.option(
    "--applied", is_flag=True, help="Include values that WHERE inherits from wider levels."
)
@with_admin
def list_policies(show: Output, admin: Admin, where: str, applied: bool) -> None:
    """List the policies that are set on WHERE.

    \b
    Example:
      velaray policies list orders --applied
    """
    found = admin.policies_of(where, applied=applied)
    if show.as_json:
        show.value(found)
        return
    rows = [{"policy": name, "value": json.dumps(value)} for name, value in found.items()]
    show.rows({"policy": "POLICY", "value": "VALUE"}, rows)


@policies.command("get")
@_where
@click.argument("policy")
@click.option(
    "--applied", is_flag=True, help="Include values that WHERE inherits from wider levels."
)
@with_admin
def get_policy(show: Output, admin: Admin, where: str, policy: str, applied: bool) -> None:
    """Show POLICY of WHERE as JSON; null if it isn't set.

    \b
    Example:
      velaray policies get public/default messageTTL --applied
    """
    show.value(admin.policies_of(where, applied=applied).get(policy))


@policies.command("set", context_settings={"ignore_unknown_options": True})  # such as -1
@_where
@click.argument("policy")
@click.argument("value")
@with_admin
def set_policy(show: Output, admin: Admin, where: str, policy: str, value: str) -> None:
    """Set POLICY of WHERE to VALUE, which is JSON.

    \b
    Example:
      velaray policies set public/default messageTTL 3600
    """
    parsed = _parsed(value)
    admin.set_policy_of(where, policy, parsed)
    show.done(f"set {policy} of {where}", set=policy, where=where, value=parsed)


def _parsed(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint="VALUE") from error


@policies.command("remove")
@_where
@click.argument("policy")
@with_admin
def remove_policy(show: Output, admin: Admin, where: str, policy: str) -> None:
    """Remove POLICY from WHERE; the wider level's value applies again.

    \b
    Example:
      velaray policies remove public/default messageTTL
    """
    admin.remove_policy_of(where, policy)
    show.done(f"removed {policy} of {where}", removed=policy, where=where)
