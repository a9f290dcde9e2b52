"""``velaray pulsar``: import tenants from Apache Pulsar."""

from __future__ import annotations

from typing import Any

import click

from velaray.cli.common import Group, Output, with_admin
from velaray.cli.confirmation import destroys
from velaray.client.admin import Admin

_COLUMNS = {
    "topic": "TOPIC",
    "cluster": "CLUSTER",
    "state": "STATE",
    "backlog": "BACKLOG ENTRIES",
    "inFlight": "ENTRIES IN FLIGHT",
    "entries": "ENTRIES HERE",
    "caughtUp": "ALL HERE",
    "why": "REASON",
}


@click.group(cls=Group)
def pulsar() -> None:
    """Import tenants from Apache Pulsar."""


@pulsar.command("import")
@click.argument("tenant")
@click.option(
    "--from",
    "cluster",
    required=True,
    help="The name under which the Pulsar cluster is registered here.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@with_admin
def import_tenant(show: Output, admin: Admin, tenant: str, cluster: str, dry_run: bool) -> None:
    """Copy TENANT's metadata from another cluster to this one, and pull its messages.

    Namespaces, topics, schemas, subscriptions and policies are copied at once. Messages and the
    positions of subscriptions follow until `velaray pulsar finish`. Run it again after topics are
    added there.

    \b
    Example:
      velaray pulsar import acme --from old --dry-run
    """
    _tell(show, admin.pull_tenant(tenant, cluster, dry_run=dry_run))


@pulsar.command("status")
@click.argument("tenant")
@with_admin
def status(show: Output, admin: Admin, tenant: str) -> None:
    """Show the progress of each pulled topic of TENANT.

    BACKLOG is the number of entries (a batch is one) that haven't been pulled yet.

    \b
    Example:
      velaray pulsar status acme
    """
    show.rows(_COLUMNS, [_row(found) for found in admin.pulls(tenant)])


def _row(found: dict[str, Any]) -> dict[str, Any]:
    reasons = (found["reason"], found["progressReason"])
    return {
        **found,
        "caughtUp": found["backlog"] == 0 and found["quiet"],
        "why": "; ".join(dict.fromkeys(filter(None, reasons))) or None,
    }


@pulsar.command("finish")
@click.argument("tenant")
@click.option(
    "--from",
    "cluster",
    required=True,
    help="The name under which the Pulsar cluster is registered here.",
)
@click.option("--force", is_flag=True, help="Finish even if some data isn't here yet.")
@destroys(
    "delete the subscriptions in {cluster} that pull {tenant}, even if some data isn't here",
    only_with="force",
)
@with_admin
def finish(show: Output, admin: Admin, tenant: str, cluster: str, force: bool) -> None:
    """Stop pulling TENANT, and delete the subscriptions in the other cluster that pulled it.

    Refused while entries are missing here. Stop the producers there first, then the consumers.

    \b
    Example:
      velaray pulsar finish acme --from old
    """
    _tell(show, admin.finish_pull(tenant, cluster, force=force))


def _tell(show: Output, found: dict[str, Any]) -> None:
    if show.as_json:
        show.value(found)
        return
    for step in found["steps"]:
        click.echo(step)
    for note in found["notes"]:
        click.echo(note)
    if not found["steps"]:
        click.echo("nothing to do")
