"""The command ``velaray``."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from velaray.cli.admin import namespaces
from velaray.cli.audit import audit
from velaray.cli.backup import backup
from velaray.cli.bench import bench
from velaray.cli.clusters import clusters
from velaray.cli.common import Commands, Output, with_admin, with_output
from velaray.cli.contexts import context
from velaray.cli.dead_letters import dead_letters
from velaray.cli.erasure import erase
from velaray.cli.history import messages, subscriptions, why
from velaray.cli.hosts import hosts
from velaray.cli.journal import journal
from velaray.cli.ledgers import ledgers
from velaray.cli.logs import logs
from velaray.cli.messages import consume, produce
from velaray.cli.migrations import tenants
from velaray.cli.peeking import topics
from velaray.cli.permissions import permissions
from velaray.cli.pipelines import pipelines
from velaray.cli.policies import policies
from velaray.cli.pulsar import pulsar
from velaray.cli.replication import replication
from velaray.cli.schemas import schemas
from velaray.cli.settings import CONFIG, SettingsCommand, config, resolved
from velaray.cli.store import store
from velaray.cli.tokens import tokens
from velaray.cli.top import top
from velaray.cli.transactions import transactions
from velaray.client.admin import Admin

if TYPE_CHECKING:
    from velaray.cluster import Cluster
    from velaray.local import LocalCluster
    from velaray.settings_sources import Resolved
    from velaray.topology.config import ClusterConfig
    from velaray.topology.ray_head import RayHead


RAY_ENDED = 4
"""The exit code of ``velaray start`` after the end of Ray's head node."""


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="velaray")
def main() -> None:
    """Durable publish-subscribe for Ray and Spark, speaking Pulsar's protocol."""


@main.command(cls=SettingsCommand)
@CONFIG
@with_output
def start(show: Output, file: Path | None, **options: Any) -> None:
    """Start a cluster and run it until Ctrl-C or SIGTERM.

    Settings are options, environment variables (VELARAY_NAME and so on) or keys of a file; see
    `velaray config show`. Exits with 4 if the head node of the Ray that it started ends.

    \b
    Examples:
      velaray start --data velaray-data
      velaray start --local --service-port 0 --admin-port 0 -o json
    """
    found = resolved(file, options)
    settings = found.settings
    from velaray.starting import ClusterError
    from velaray.topology.config import UnreachableAddressError, UnsafeBindingError
    from velaray.topology.key_files import KeyFileError
    from velaray.topology.logs import configure_logs

    restore = configure_logs(settings.log_format, settings.log_level)
    click.get_current_context().call_on_close(restore)
    try:
        cluster = _started(found)
    except (
        *(ClusterError, KeyFileError, UnsafeBindingError, UnreachableAddressError, OSError),
    ) as error:
        raise click.ClickException(str(error)) from error
    with cluster:
        stopped = _on_stop_signals()
        _show_addresses(show, cluster.config, settings.location)
        _run_until(stopped, cluster)
        show.done("velaray is stopping", state="stopping")
    show.done("velaray has stopped", state="stopped")


def _show_addresses(show: Output, config: ClusterConfig, location: str) -> None:
    """Print where the cluster is; as JSON on one line, since lines about its end follow."""
    services = [url for url in (config.plain_service_url, config.tls_service_url) if url]
    admins = [url for url in (config.plain_admin_url, config.tls_admin_url) if url]
    console = f"{config.tls_admin_url or config.plain_admin_url}/"
    lines = [
        *(f"service  {url}" for url in services),
        *(f"admin    {url}" for url in admins),
        f"console  {console}",
        f"data     {location}",
        "velaray is running; stop it with Ctrl-C",
    ]
    facts = {"service": services, "admin": admins, "console": console, "data": location}
    show.done("\n".join(lines), state="running", **facts)


def _started(found: Resolved) -> Cluster | LocalCluster:
    """Start the cluster on Ray, or in this process. Raises what their `from_settings` raises."""
    if found.settings.local:
        from velaray.local import LocalCluster
        from velaray.topology.ray_process import allow_many_files, collect_garbage_rarely
        from velaray.wire.allocation import keep_freed_memory

        allow_many_files()
        keep_freed_memory()
        cluster = LocalCluster.from_settings(found.settings, found.sources)
        collect_garbage_rarely()
        return cluster
    _require_ray()
    from velaray.cluster import Cluster

    return Cluster.from_settings(found.settings, found.sources)


def _require_ray() -> None:
    """Load Ray, which takes a second; only `start` needs it."""
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise click.ClickException(f"Ray can't be loaded ({error}): pip install ray") from error


def _on_stop_signals() -> int:
    """A descriptor that becomes readable when SIGINT or SIGTERM arrives."""
    readable, writable = os.pipe()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os.write(writable, b"."))
    return readable


def _run_until(stopped: int, cluster: Cluster | LocalCluster) -> None:
    """Return when ``stopped`` is readable; then a second signal ends the process at once.

    Raises `click.ClickException` if another cluster takes over the data. Exits with `RAY_ENDED` if
    the head node of the Ray that this process started has ended.
    """
    from velaray.topology.ownership import OWNERSHIP_CHECK_S, Superseded

    head = cluster.ray_head()
    while not select.select([stopped], [], [], OWNERSHIP_CHECK_S)[0]:
        if head is not None:
            _check_head(head)
        try:
            cluster.watch()
        except Superseded as error:
            raise click.ClickException(str(error)) from error
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _check_head(head: RayHead) -> None:
    """Exit with `RAY_ENDED` if the head node of Ray has ended, and end its other processes."""
    from velaray.topology.ray_head import RayEnded

    try:
        head.check()
    except RayEnded as error:
        click.echo(f"Error: {error}", err=True)
        head.end_all()
        os._exit(RAY_ENDED)  # Ray's own exit would wait a minute for its head node


@main.command()
@with_admin
def status(show: Output, admin: Admin) -> None:
    """Check that the cluster answers, and show its tenants and topics.

    \b
    Example:
      velaray status
    """
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
    audit,
    backup,
    bench,
    clusters,
    config,
    consume,
    context,
    dead_letters,
    hosts,
    journal,
    erase,
    ledgers,
    logs,
    namespaces,
    permissions,
    pipelines,
    policies,
    produce,
    pulsar,
    replication,
    schemas,
    store,
    subscriptions,
    tenants,
    tokens,
    top,
    topics,
    messages,
    transactions,
    why,
):
    main.add_command(_command)
