"""``velaray clusters``: the other clusters that this one knows."""

from __future__ import annotations

from typing import Any, TextIO

import click

from velaray.cli.common import Output, with_admin
from velaray.client.admin import Admin

_COLUMNS = {
    "cluster": "CLUSTER",
    "brokerServiceUrl": "SERVICE",
    "serviceUrl": "ADMIN",
    "progress": "PROGRESS",
    "hasToken": "TOKEN",
    "local": "THIS ONE",
}
_token = click.option(
    "--cluster-token",
    type=click.File("r", encoding="utf-8"),
    help="File with the token that this cluster sends to CLUSTER (-: standard input). "
    "It is never shown.",
)
_progress = click.Choice(["exact", "snapshots"])


@click.group()
def clusters() -> None:
    """Register other clusters, for replication and as home clusters of tenants."""


@clusters.command("list")
@with_admin
def list_clusters(show: Output, admin: Admin) -> None:
    """List the clusters."""
    show.rows(_COLUMNS, [_row(name, found) for name, found in sorted(admin.clusters().items())])


@clusters.command("get")
@click.argument("cluster")
@with_admin
def get_cluster(show: Output, admin: Admin, cluster: str) -> None:
    """Show the URLs of CLUSTER."""
    show.rows(_COLUMNS, [_row(cluster, admin.cluster(cluster))])


def _row(name: str, found: dict[str, Any]) -> dict[str, Any]:
    return {"cluster": name, **found}


@clusters.command("create")
@click.argument("cluster")
@click.option("--service-url", required=True, help="Where its clients connect: pulsar://host:port.")
@click.option("--cluster-admin-url", required=True, help="Its admin interface: http://host:port.")
@_token
@click.option(
    "--progress",
    type=_progress,
    default="exact",
    show_default=True,
    help="How subscription progress is sent to CLUSTER: all of it, or by Pulsar's snapshots, "
    "if it supports nothing else.",
)
@with_admin
def create_cluster(
    show: Output,
    admin: Admin,
    cluster: str,
    service_url: str,
    cluster_admin_url: str,
    cluster_token: TextIO | None,
    progress: str,
) -> None:
    """Register CLUSTER under its own name."""
    admin.create_cluster(
        cluster,
        service_url=service_url,
        admin_url=cluster_admin_url,
        token=_read(cluster_token),
        progress=progress,
    )
    show.done(f"created {cluster}", created=cluster)


@clusters.command("update")
@click.argument("cluster")
@click.option("--service-url", help="Where its clients connect: pulsar://host:port.")
@click.option("--cluster-admin-url", help="Its admin interface: http://host:port.")
@_token
@click.option("--no-cluster-token", is_flag=True, help="Send no token to it any more.")
@click.option("--progress", type=_progress, help="How subscription progress is sent to it.")
@with_admin
def update_cluster(
    show: Output,
    admin: Admin,
    cluster: str,
    service_url: str | None,
    cluster_admin_url: str | None,
    cluster_token: TextIO | None,
    no_cluster_token: bool,
    progress: str | None,
) -> None:
    """Change the settings of CLUSTER."""
    if no_cluster_token and cluster_token is not None:
        raise click.UsageError("give --cluster-token or --no-cluster-token, not both")
    admin.update_cluster(
        cluster,
        service_url=service_url,
        admin_url=cluster_admin_url,
        token="" if no_cluster_token else _read(cluster_token),
        progress=progress,
    )
    show.done(f"updated {cluster}", updated=cluster)


def _read(token: TextIO | None) -> str | None:
    """The token in the file. Raises for an empty file, which doesn't mean "no token"."""
    if token is None:
        return None
    found = token.read().strip()
    if not found:
        raise click.ClickException(f"{token.name} holds no token")
    return found


@clusters.command("delete")
@click.argument("cluster")
@with_admin
def delete_cluster(show: Output, admin: Admin, cluster: str) -> None:
    """Remove CLUSTER, which no tenant or policy may name."""
    admin.delete_cluster(cluster)
    show.done(f"deleted {cluster}", deleted=cluster)
