"""The command ``velaray``."""

from __future__ import annotations

import os
import re
import select
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from velaray.actors.catalog.clusters import is_service_url
from velaray.cli.admin import namespaces
from velaray.cli.clusters import clusters
from velaray.cli.common import Commands, Output, with_admin
from velaray.cli.compaction import topics
from velaray.cli.history import messages, subscriptions, why
from velaray.cli.hosts import hosts
from velaray.cli.journal import journal
from velaray.cli.ledgers import ledgers
from velaray.cli.messages import consume, produce
from velaray.cli.migrations import tenants
from velaray.cli.pipelines import pipelines
from velaray.cli.policies import policies
from velaray.cli.pulsar import pulsar
from velaray.cli.replication import replication
from velaray.cli.schemas import schemas
from velaray.cli.tokens import read_secret, tokens
from velaray.cli.transactions import transactions
from velaray.client.admin import Admin

if TYPE_CHECKING:
    from velaray.cluster import Cluster
    from velaray.local import LocalCluster
    from velaray.starting import ClusterOptions
    from velaray.topology.config import AuthSettings

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="velaray")
def main() -> None:
    """Durable publish-subscribe for Ray and Spark, speaking Pulsar's protocol."""


@main.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("velaray-data"),
    show_default=True,
    help="Directory of the journals; created if missing.",
)
@click.option(
    "--name",
    default="standalone",
    show_default=True,
    help="The cluster's name for other clusters. It can't change once there is data.",
)
@click.option(
    "--cluster-number",
    type=click.IntRange(0, 2046),
    default=0,
    show_default=True,
    help="The cluster's number; clusters that replicate to each other need different ones. It "
    "can't change once there is data.",
)
@click.option(
    "--service-port",
    type=click.IntRange(0, 65535),
    default=6650,
    show_default=True,
    help="Port for clients; 0 takes a free one.",
)
@click.option(
    "--admin-port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port for the admin interface; 0 takes a free one.",
)
@click.option("--ray-address", help="Use this Ray cluster instead of starting Ray here.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. For several machines a network, such as 10.1.0.0/16, or the name "
    "of an interface: each node listens on its own address there. It runs actors if its Ray has "
    "the resource velaray_data.",
)
@click.option(
    "--advertise",
    multiple=True,
    metavar="NAME",
    callback=lambda context, parameter, given: _advertised(given),
    help="Name or address by which clients reach --host. With a network or an interface "
    "ADDRESS=NAME, repeated for the nodes' addresses. Default: the addresses themselves.",
)
@click.option("--token-secret", type=_FILE, help="Accept HS256 tokens signed with this key.")
@click.option("--token-public-key", type=_FILE, help="Accept RS256 tokens for this PEM key.")
@click.option(
    "--replication-secret",
    type=_FILE,
    callback=lambda context, parameter, given: b"" if given is None else read_secret(given),
    help="File with the key that all clusters share that replicate to each other. Without it, "
    "replicators of other clusters are refused.",
)
@click.option("--tunnel", is_flag=True, help="Let clients reach topics through the service port.")
@click.option(
    "--listener",
    "listeners",
    multiple=True,
    metavar="NAME=URL",
    callback=lambda context, parameter, given: _listeners(given),
    help="Like --tunnel, for clients with listener name NAME; URL (pulsar://host:port) is the "
    "address of the service port in their network. May be repeated.",
)
@click.option(
    "--placement",
    type=click.Choice(["dedicated", "shared", "auto"]),
    help="auto (the default) runs the actors in a few processes and gives busy topics processes of "
    "their own; shared runs them in a few processes only; dedicated gives each actor a process.",
)
@click.option(
    "--hosts",
    type=click.IntRange(min=1),
    help="Number of processes that actors share with --placement shared or auto. Default: one for "
    "each core.",
)
@click.option(
    "--port-range",
    metavar="FIRST-LAST",
    callback=lambda context, parameter, given: _port_range(given),
    help="Ports for the processes of actors, two for each, such as 6700-6799. Default: any ports.",
)
@click.option("--local", is_flag=True, help="Run all actors in this process, without Ray.")
@click.option(
    "--passivate-after",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    help="Seconds after which an unused actor is stopped to free its memory.",
)
@click.option(
    "--partition-sync",
    type=click.Choice(["always", "interval"]),
    default="always",
    show_default=True,
    help="When to sync published messages to disk: before every receipt, or on a timer. With a "
    "timer, a power loss loses messages published since the last sync; a process crash loses none.",
)
@click.option(
    "--sync-interval-ms",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Milliseconds between syncs with --partition-sync interval.",
)
@click.option(
    "--compaction-retain-null-key",
    is_flag=True,
    help="Keep messages without a key in compaction; by default it drops them.",
)
@click.option(
    "--max-active-transactions",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Limit of open transactions per coordinator; further clients wait. 0: no limit.",
)
@click.option(
    "--undelete-window",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Seconds for which a deleted topic can be undeleted; its storage is freed afterwards.",
)
@click.option(
    "--deletion-retry",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds until a failed deletion of a ledger is retried.",
)
@click.option(
    "--deleters",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of actors that delete ledgers; each deletes about 250 a second.",
)
def start(
    data: Path,
    name: str,
    cluster_number: int,
    service_port: int,
    admin_port: int,
    ray_address: str | None,
    host: str,
    token_secret: Path | None,
    token_public_key: Path | None,
    replication_secret: bytes,
    tunnel: bool,
    listeners: dict[str, str],
    placement: str | None,
    hosts: int | None,
    port_range: tuple[int, int] | None,
    advertise: str | dict[str, str],
    local: bool,
    passivate_after: float,
    partition_sync: str,
    sync_interval_ms: int,
    compaction_retain_null_key: bool,
    max_active_transactions: int,
    undelete_window: float,
    deletion_retry: float,
    deleters: int,
) -> None:
    """Start a cluster and run it until Ctrl-C or SIGTERM."""
    from velaray.starting import ClusterError, ClusterOptions
    from velaray.topology.config import UnreachableAddressError, UnsafeBindingError

    options = ClusterOptions(
        name=name,
        cluster_number=cluster_number,
        host=host,
        service_port=service_port,
        admin_port=admin_port,
        auth=_auth(token_secret, token_public_key),
        replication_secret=replication_secret,
        tunnel=tunnel,
        listeners=listeners,
        passivate_after_s=passivate_after,
        partition_sync=partition_sync,
        sync_interval_ms=sync_interval_ms,
        compaction_retain_null_key=compaction_retain_null_key,
        max_active_transactions=max_active_transactions,
        undelete_s=undelete_window,
        deletion_retry_s=deletion_retry,
        deleters=deleters,
        port_range=port_range,
        advertise=advertise,
    )
    try:
        cluster = _started(data, local, ray_address, placement, hosts, options)
    except (ClusterError, UnsafeBindingError, UnreachableAddressError, OSError) as error:
        raise click.ClickException(str(error)) from error
    with cluster:
        stopped = _on_stop_signals()
        click.echo(f"service  {cluster.service_url}\nadmin    {cluster.admin_url}")
        click.echo(f"data     {data.resolve()}\nvelaray is running; stop it with Ctrl-C")
        _run_until(stopped, cluster)
        click.echo("velaray is stopping")
    click.echo("velaray has stopped")


def _started(
    data: Path,
    local: bool,
    ray_address: str | None,
    placement: str | None,
    hosts: int | None,
    options: ClusterOptions,
) -> Cluster | LocalCluster:
    """Start the cluster on Ray, or in this process. Raises what their ``start`` raises."""
    if local:
        given_of = {"--ray-address": ray_address, "--placement": placement, "--hosts": hosts}
        for option, given in given_of.items():
            if given is not None:
                raise click.UsageError(f"{option} is about Ray, which --local doesn't use")
        from velaray.local import LocalCluster
        from velaray.topology.ray_process import allow_many_files

        allow_many_files()
        return LocalCluster.start(data, **options)
    placement = placement or "auto"
    if hosts is not None and placement == "dedicated":
        raise click.UsageError("--hosts needs --placement shared or auto")
    _require_ray()
    from velaray.cluster import Cluster

    return Cluster.start(data, ray_address=ray_address, placement=placement, hosts=hosts, **options)


def _require_ray() -> None:
    """Load Ray, which takes a second; only `start` needs it."""
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise click.ClickException(f"Ray can't be loaded ({error}): pip install ray") from error


def _listeners(given: tuple[str, ...]) -> dict[str, str]:
    """Parse the listeners NAME=URL: service URLs by name."""
    found: dict[str, str] = {}
    for text in given:
        name, _, url = text.partition("=")
        if not name or not is_service_url(url):
            raise click.BadParameter(f"{text!r}: write NAME=pulsar://host:port")
        if name in found:
            raise click.BadParameter(f"listener {name} is given twice")
        found[name] = url
    return found


def _advertised(given: tuple[str, ...]) -> str | dict[str, str]:
    """Parse one NAME, or ADDRESS=NAME for each node."""
    if len(given) < 2 and "=" not in "".join(given):
        return "".join(given)
    found: dict[str, str] = {}
    for text in given:
        address, separator, name = text.partition("=")
        if not (address and separator and name):
            raise click.BadParameter(f"{text!r}: write one NAME, or ADDRESS=NAME for each node")
        if address in found:
            raise click.BadParameter(f"{address} has two names")
        found[address] = name
    return found


def _port_range(given: str | None) -> tuple[int, int] | None:
    """Parse FIRST-LAST."""
    if given is None:
        return None
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", given, re.ASCII)
    if found is None or not 1 <= int(found[1]) <= int(found[2]) <= 65_535:
        raise click.BadParameter(f"{given!r}: write FIRST-LAST, such as 6700-6799")
    return int(found[1]), int(found[2])


def _on_stop_signals() -> int:
    """A descriptor that becomes readable when SIGINT or SIGTERM arrives."""
    readable, writable = os.pipe()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os.write(writable, b"."))
    return readable


def _run_until(stopped: int, cluster: Cluster | LocalCluster) -> None:
    """Return when ``stopped`` is readable; then a second signal ends the process at once.

    Raises `click.ClickException` if another cluster takes over the data.
    """
    from velaray.topology.ownership import OWNERSHIP_CHECK_S, Superseded

    while not select.select([stopped], [], [], OWNERSHIP_CHECK_S)[0]:
        try:
            cluster.check_ownership()
        except Superseded as error:
            raise click.ClickException(str(error)) from error
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _auth(secret: Path | None, public_key: Path | None) -> AuthSettings | None:
    from velaray.topology.config import AuthSettings

    if secret is not None and public_key is not None:
        raise click.UsageError("give --token-secret or --token-public-key, not both")
    if secret is not None:
        return AuthSettings(secret=read_secret(secret))
    if public_key is None:
        return None
    text = public_key.read_text(encoding="utf-8", errors="replace")
    if "PUBLIC KEY" not in text:
        raise click.ClickException(f"{public_key} holds no public key in PEM form")
    return AuthSettings(public_key=text)


@main.command()
@with_admin
def status(show: Output, admin: Admin) -> None:
    """Check that the cluster answers, and show its tenants and topics."""
    admin.health()
    spaces = [space for tenant in admin.tenants() for space in admin.namespaces(tenant)]
    held = [admin.topics(space) for space in spaces]
    counts = {
        "health": "ok",
        "tenants": len(admin.tenants()),
        "namespaces": len(spaces),
        "topics": sum(len(topics) for topics in held),
    }
    known = admin.clusters().items()
    facts = [{"cluster": name, **urls, **counts} for name, urls in known if urls["local"]]
    columns = {
        "cluster": "CLUSTER",
        "brokerServiceUrl": "SERVICE",
        "serviceUrl": "ADMIN",
        "health": "HEALTH",
        "tenants": "TENANTS",
        "namespaces": "NAMESPACES",
        "topics": "TOPICS",
    }
    show.rows(columns, facts)


for _command in (
    clusters,
    consume,
    hosts,
    journal,
    ledgers,
    namespaces,
    pipelines,
    policies,
    produce,
    pulsar,
    replication,
    schemas,
    subscriptions,
    tenants,
    tokens,
    topics,
    messages,
    transactions,
    why,
):
    main.add_command(_command)
