"""``velaray clusters``: the other clusters that this one knows."""

from __future__ import annotations

from typing import Any, TextIO

import click

from velaray.cli.common import Command, Group, Output, with_admin
from velaray.cli.confirmation import destroys
from velaray.client.admin import Admin

_COLUMNS = {
    "cluster": "CLUSTER",
    "brokerServiceUrl": "SERVICE",
    "brokerServiceUrlTls": "SERVICE BY TLS",
    "serviceUrl": "ADMIN",
    "serviceUrlTls": "ADMIN BY TLS",
    "progress": "PROGRESS",
    "hasToken": "TOKEN",
    "replicationKeys": "KEYS",
    "local": "THIS ONE",
}
_token = click.option(
    "--cluster-token",
    type=click.File("r", encoding="utf-8"),
    help="File with the token that this cluster sends to CLUSTER (-: standard input). "
    "It is never shown.",
)
_progress = click.Choice(["exact", "snapshots"])


def _urls(command: Command) -> Command:
    """Give ``command`` the options for the URLs of a cluster."""
    options = {
        "--service-url": "Where its clients connect: pulsar://host:port.",
        "--cluster-admin-url": "Its admin interface: http://host:port.",
        "--broker-url-tls": "Where its clients connect by TLS: pulsar+ssl://host:port.",
        "--cluster-admin-url-tls": "Its admin interface by TLS: https://host:port.",
    }
    for name, text in reversed(options.items()):
        command = click.option(name, help=text)(command)
    return command


@click.group(cls=Group)
def clusters() -> None:
    """Register other clusters, for replication and as home clusters of tenants."""


@clusters.command("list")
@with_admin
def list_clusters(show: Output, admin: Admin) -> None:
    """List the clusters.

    \b
    Example:
      velaray clusters list
    """
    show.rows(_COLUMNS, [_row(name, found) for name, found in sorted(admin.clusters().items())])


@clusters.command("get")
@click.argument("cluster")
@with_admin
def get_cluster(show: Output, admin: Admin, cluster: str) -> None:
    """Show the URLs of CLUSTER.

    \b
    Example:
      velaray clusters get west -o json
    """
    show.rows(_COLUMNS, [_row(cluster, admin.cluster(cluster))])


def _row(name: str, found: dict[str, Any]) -> dict[str, Any]:
    return {"cluster": name, **found}


@clusters.command("create")
@click.argument("cluster")
@_urls
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
    service_url: str | None,
    cluster_admin_url: str | None,
    broker_url_tls: str | None,
    cluster_admin_url_tls: str | None,
    cluster_token: TextIO | None,
    progress: str,
) -> None:
    """Register CLUSTER under its own name.

    \b
    Example:
      velaray clusters create west --service-url pulsar://west:6650
    """
    admin.create_cluster(
        cluster,
        service_url=service_url or "",
        admin_url=cluster_admin_url or "",
        service_url_tls=broker_url_tls or "",
        admin_url_tls=cluster_admin_url_tls or "",
        token=_read(cluster_token),
        progress=progress,
    )
    show.done(f"created {cluster}", created=cluster)


@clusters.command("update")
@click.argument("cluster")
@_urls
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
    broker_url_tls: str | None,
    cluster_admin_url_tls: str | None,
    cluster_token: TextIO | None,
    no_cluster_token: bool,
    progress: str | None,
) -> None:
    """Change the settings of CLUSTER.

    \b
    Example:
      velaray clusters update west --cluster-token west.token
    """
    if no_cluster_token and cluster_token is not None:
        raise click.UsageError("give --cluster-token or --no-cluster-token, not both")
    admin.update_cluster(
        cluster,
        service_url=service_url,
        admin_url=cluster_admin_url,
        service_url_tls=broker_url_tls,
        admin_url_tls=cluster_admin_url_tls,
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
@destroys("remove the cluster {cluster} with its URLs and its token")
@with_admin
def delete_cluster(show: Output, admin: Admin, cluster: str) -> None:
    """Remove CLUSTER, which no tenant or policy may name.

    \b
    Example:
      velaray clusters delete west
    """
    admin.delete_cluster(cluster)
    show.done(f"deleted {cluster}", deleted=cluster)
