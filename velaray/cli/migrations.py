"""``velaray tenants migrate``, ``migration`` and ``failover``: change a tenant's home cluster."""

from __future__ import annotations

import sys
import threading
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.status import Status
from rich.text import Text

from velaray.cli.admin import tenants
from velaray.cli.common import JournalsPlace, Output, with_admin, with_keys
from velaray.cli.confirmation import destroys
from velaray.cli.journal import run_reading
from velaray.client.admin import Admin, Unavailable
from velaray.events.ids import Position
from velaray.topology.stores import open_store

__all__ = ["tenants"]

_LOOK_S = 0.5
_PATIENCE = 240
"""Limit of consecutive polls that can't reach a cluster."""
_COUNTS = ("namespaces", "topics", "partitions", "subscriptions", "entries")


@tenants.command("migrate")
@click.argument("tenant")
@click.option("--to", "cluster", help="The cluster to move to; it must be registered here.")
@click.option("--dry-run", is_flag=True, help="Only check whether it can move; change nothing.")
@click.option(
    "--progress",
    type=click.Choice(["exact", "snapshots"]),
    default="exact",
    show_default=True,
    help="Subscription progress to copy: all of it, or mark-delete positions only.",
)
@click.option(
    "--max-lag",
    type=click.IntRange(min=0),
    default=1000,
    show_default=True,
    help="Reject clients only when the target lacks at most this many entries.",
)
@click.option("--wait/--no-wait", default=True, help="Wait until it ends.", show_default=True)
@click.option(
    "--roll-back", is_flag=True, help="Cancel the running migration; the tenant stays here."
)
@with_admin
def migrate(
    show: Output,
    admin: Admin,
    tenant: str,
    cluster: str | None,
    dry_run: bool,
    progress: str,
    max_lag: int,
    wait: bool,
    roll_back: bool,
) -> None:
    """Move TENANT to another cluster while its clients keep working.

    Run it on the tenant's home cluster. The migration continues if this command ends: `velaray
    tenants migration TENANT` shows it.

    \b
    Example:
      velaray tenants migrate acme --to west --dry-run
    """
    if roll_back == (cluster is not None) or (roll_back and dry_run):
        raise click.UsageError("give --to CLUSTER, or --roll-back")
    if roll_back:
        admin.roll_back_migration(tenant)
    elif dry_run:
        assert cluster is not None
        _examine(show, admin, tenant, cluster, progress, max_lag)
        return
    else:
        assert cluster is not None
        admin.migrate_tenant(tenant, cluster, progress=progress, max_lag=max_lag)
    found = _watch(admin, tenant) if wait else admin.migration(tenant)
    _tell(show, found)
    if wait and (found["phase"] == "done") == roll_back:
        sys.exit(1)


def _examine(
    show: Output, admin: Admin, tenant: str, cluster: str, progress: str, max_lag: int
) -> None:
    found = admin.examine_migration(tenant, cluster, progress=progress, max_lag=max_lag)
    if show.as_json:
        show.value(found)
    else:
        show.rows({name: name.upper() for name in _COUNTS}, [found])
        for problem in found["problems"]:
            click.echo(f"obstacle: {problem}")
        if not found["problems"]:
            click.echo(f"{tenant} can move to {cluster}")
    if found["problems"]:
        sys.exit(1)


def _watch(admin: Admin, tenant: str) -> dict[str, Any]:
    """Show the progress of the migration until it ends."""
    pause, away = threading.Event(), 0
    with Status("", console=Console(stderr=True)) as status:
        while True:
            try:
                found = admin.migration(tenant)
                away = 0
            except Unavailable:
                away += 1
                if away > _PATIENCE:
                    raise
            else:
                if found["over"]:
                    return found
                status.update(Text(_line(found)))
            pause.wait(_LOOK_S)


def _line(found: dict[str, Any]) -> str:
    detail = found["detail"]
    said = f"{found['tenant']} to {found['target']}: {found['phase']}"
    if detail.get("waiting_for"):
        said += f"; waits for {detail['waiting_for']}"
    if detail.get("partitions"):
        lag_s = detail["progress_lag_ms"] / 1000
        said += f" ({detail['lag']} entries and {lag_s:.1f} s of progress behind)"
    if detail.get("problem"):
        said += f": {detail['problem']}"
    return said


@tenants.command("failover")
@click.argument("tenant")
@click.option("--lost", help="The lost cluster, if this one doesn't know TENANT's home.")
@click.option(
    "--source-data",
    type=JournalsPlace(),
    help="The lost cluster's data directory or object store, to list exactly what never arrived "
    "here.",
)
@with_keys
@destroys("make this cluster the home of {tenant}, without what wasn't replicated")
@with_admin
def fail_over(
    show: Output, admin: Admin, tenant: str, lost: str | None, source_data: str | None
) -> None:
    """Make this cluster the home of TENANT after the loss of its home cluster.

    Messages that weren't replicated are missing here. Messages whose acknowledgement wasn't
    replicated are redelivered: at most MAY BE REDELIVERED messages.

    \b
    Example:
      velaray tenants failover acme --lost west
    """
    found = admin.fail_over_tenant(tenant, lost)
    missing = None if source_data is None else _missing(admin, tenant, found, source_data)
    if show.as_json:
        show.value(found if missing is None else {**found, "missing": missing})
        return
    click.echo(f"the home of {tenant} is {found['home']}; {found['lost']} counts as lost")
    show.rows(_ARRIVED, [_arrived(each) for each in found["partitions"]])
    show.rows(_AGAIN, [row for each in found["partitions"] for row in _again(each)])
    if missing is not None:
        show.rows(_MISSING, missing)
        show.rows(_UNSYNCED, [row for each in missing for row in _unsynced(each)])


_ARRIVED = {
    "topic": "TOPIC",
    "newest": "NEWEST ARRIVED",
    "published": "PUBLISHED",
    "producers": "PRODUCERS",
    "given_up": "ABANDONED TRANSACTIONS",
}
_AGAIN = {
    "topic": "TOPIC",
    "subscription": "SUBSCRIPTION",
    "told": "LAST PROGRESS",
    "entries": "ENTRIES",
    "messages": "MAY BE REDELIVERED",
}
_MISSING = {
    "topic": "TOPIC",
    "entries": "MISSING ENTRIES",
    "messages": "MISSING MESSAGES",
    "positions": "WHERE THEY WERE",
}
_UNSYNCED = {"topic": "TOPIC", "subscription": "SUBSCRIPTION", "messages": "COME AGAIN"}


def _arrived(found: dict[str, Any]) -> dict[str, Any]:
    published_ms = found["newest_published_ms"]
    return {
        **found,
        "published": None if published_ms is None else _time(published_ms),
        "given_up": found["transactions"]["given_up"],
    }


def _again(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "topic": found["topic"],
            **each,
            "told": None if each["progress_ms"] is None else _time(each["progress_ms"]),
        }
        for each in found["subscriptions"]
    ]


def _unsynced(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"topic": found["topic"], "subscription": name, "messages": messages}
        for name, messages in found["unsynced"].items()
    ]


def _missing(
    admin: Admin, tenant: str, found: dict[str, Any], source_data: str
) -> list[dict[str, Any]]:
    """The data in the lost cluster's directory that is missing here."""
    # Most commands don't need the machines, which load slowly.
    from velaray.offline.lost_data import lost_of, partitions_of

    here = {each["topic"] for each in found["partitions"]}
    store, lost = open_store(source_data), found["lost"]

    async def compare() -> list[dict[str, Any]]:
        rows = []
        for key in await partitions_of(store, tenant):
            topic = str(key.topic_name)
            came: dict[str, Any] = {"newest": None, "subscriptions": {}}
            if topic in here:
                came = admin.received_from(tenant, topic, lost)
            rows.append(asdict(await lost_of(store, key, lost, came)))
        return rows

    rows = run_reading(compare(), store)
    return [{**row, "positions": [_row_of(*each) for each in row["positions"]]} for row in rows]


def _row_of(first: Position, last: Position) -> str:
    more = "" if first == last else f"-{last.entry_id}"
    return f"{first.ledger_id}:{first.entry_id}{more}"


@tenants.command("migration")
@click.argument("tenant")
@with_admin
def show_migration(show: Output, admin: Admin, tenant: str) -> None:
    """Show the progress of the newest migration of TENANT to another cluster.

    \b
    Example:
      velaray tenants migration acme
    """
    _tell(show, admin.migration(tenant))


def _tell(show: Output, found: dict[str, Any]) -> None:
    if show.as_json:
        show.value(found)
        return
    begun_ms = found["steps"][0][1]
    rows = [
        {"phase": phase, "at": _time(at_ms), "after": (at_ms - begun_ms) / 1000}
        for phase, at_ms in found["steps"]
    ]
    show.rows({"phase": "PHASE", "at": "AT", "after": "AFTER (S)"}, rows)
    steps = dict(map(tuple, found["steps"]))
    if "fenced" in steps:
        until = next((steps[end] for end in ("switched", "rolling back") if end in steps), None)
        lasted = (found["now_ms"] if until is None else until) - steps["fenced"]
        click.echo(f"clients were kept away for {lasted / 1000:.3f} s")
    if found["why"]:
        click.echo(f"rolled back: {found['why']}")
    if not found["over"]:
        click.echo(_line(found))


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
