"""``velaray ledgers``: stored ledgers, their offload, pending deletions, failed deletions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from threading import Event
from time import monotonic
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from velaray.cli.common import Group, Output, time_text, with_admin
from velaray.cli.confirmation import destroys
from velaray.client.admin import Admin

Found = Mapping[str, Any]


@click.group(cls=Group)
def ledgers() -> None:
    """Audit the stored ledgers, move them to an archive, and inspect deletions."""


# -- audit ------------------------------------------------------------------------

_NAMED = {
    "orphan": "no manifest lists them and no deletion is pending: --repair deletes them",
    "missing": "a manifest lists them, but they are not stored",
    "dead-letter": "they couldn't be deleted: see velaray ledgers dlq list",
}


@ledgers.command("audit")
@click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
@click.option("--repair", is_flag=True, help="Delete the orphans.")
@destroys("delete the ledgers that no manifest lists", only_with="repair")
@with_admin
def audit(show: Output, admin: Admin, as_json: bool, repair: bool) -> None:
    """Compare the stored ledgers with the manifests and the pending deletions.

    Exits with 3 if a ledger is missing, if an orphan isn't repaired, or if the manifest of a
    journal can't be read.

    \b
    Example:
      velaray ledgers audit --repair --yes
    """
    found = admin.repair_ledgers() if repair else admin.ledger_audit()
    if show.as_json or as_json:
        show.value(found)
    else:
        _print(show, found)
    lost = found["totals"]["missing"]["ledgers"] + len(found["unreadable"])
    if not repair:
        lost += found["totals"]["orphan"]["ledgers"]
    if lost:
        raise click.exceptions.Exit(3)


_census = copy(audit)
_census.name, _census.hidden, _census.deprecated = "census", True, True
ledgers.add_command(_census)


def _print(show: Output, found: Found) -> None:
    rows = [
        {"kind": kind, "state": state, **numbers}
        for kind, states in [*found["kinds"].items(), ("all", found["totals"])]
        for state, numbers in states.items()
        if numbers["ledgers"] or (kind == "all" and state in ("orphan", "missing"))
    ]
    columns = {"kind": "KIND", "state": "STATE", "ledgers": "LEDGERS", "bytes": "BYTES"}
    show.rows(columns, rows)
    for state, meaning in _NAMED.items():
        if named := found["ledgers"][state]:
            click.echo(f"{state}: {meaning}")
            for each in named:
                click.echo(f"  {each['ledgerId']} of {each['journal']}, {each['bytes']} bytes")
    if found["unreadable"]:
        click.echo("not counted: these journals can't be read")
        for each in found["unreadable"]:
            click.echo(f"  {each['journal']}: {each['why']}")
    if "announced" in found:
        click.echo(f"enqueued the deletion of {found['announced']} orphans")


# -- waiting -----------------------------------------------------------------------

LOOK_EVERY_S = 0.5
"""Minimum delay between two audits; a slow audit extends the delay to its own duration."""


@ledgers.command("wait")
@click.option(
    "--within",
    type=click.FloatRange(min=0, min_open=True),
    help="Maximum seconds to wait.  [default: no limit]",
)
@with_admin
def wait(show: Output, admin: Admin, within: float | None) -> None:
    """Wait until all pending deletions are done, and show the progress.

    Exits with 3 if a ledger is left: after --within seconds, or because its deletion failed.

    \b
    Example:
      velaray ledgers wait --within 60
    """
    began, took, pause = monotonic(), 0.0, Event()
    first = most = left = _waiting(admin)
    with Progress(*_COLUMNS, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("ledgers deleted")
        while left["ledgers"]:
            if within is not None and monotonic() - began > within:
                break
            gone = most["ledgers"] - left["ledgers"]
            progress.update(task, completed=gone, total=most["ledgers"])
            pause.wait(max(LOOK_EVERY_S, took))
            looked = monotonic()
            left = _waiting(admin)
            took = monotonic() - looked
            most = max(most, left, key=lambda found: found["ledgers"])
    dead = left["dead"]
    said = f"{left['ledgers']} ledgers wait for deletion ({first['ledgers']} at the start)"
    if dead:
        said += f"; {dead} couldn't be deleted: see velaray ledgers dlq list"
    show.done(said, left=left["ledgers"], bytes=left["bytes"], before=first["ledgers"], dead=dead)
    if left["ledgers"] or dead:
        raise click.exceptions.Exit(3)


def _waiting(admin: Admin) -> Found:
    """Ledgers and bytes that wait for their deletion, and the number of failed deletions."""
    totals = admin.ledger_audit()["totals"]
    return {**totals["pending"], "dead": totals["dead-letter"]["ledgers"]}


_COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeRemainingColumn(),
)


# -- one ledger --------------------------------------------------------------------


@ledgers.command("describe")
@click.argument("ledger", type=click.IntRange(min=0))
@with_admin
def describe(show: Output, admin: Admin, ledger: int) -> None:
    """Show the location, the owner and the planned deletion of LEDGER.

    \b
    Example:
      velaray ledgers describe 16777216
    """
    found = admin.ledger(ledger)
    if show.as_json:
        show.value(found)
        return
    click.echo("\n".join(_lines(found)))


def _lines(found: Found) -> Iterator[str]:
    yield f"ledger {found['ledgerId']} of {found['journal']}: {found['state']}"
    if found["state"] != "gone":
        yield f"{found['bytes']} bytes at {found['location']}"
        if found["owned"] is False:
            yield "its header names another owner: it won't be deleted"
        if found["records"] is not None:
            end = "sealed" if found["sealed"] else "open"
            yield f"{end}, {found['records']} records with {found['entries']} entries"
        yield from _tier(found)
        if found["deadJournal"]:
            yield "its actor was deleted"
    for each in found["pending"]:
        yield f"deletion pending: event {each['id']}, {_since(each)}"
    for each in found["deadLetters"]:
        yield f"deletion failed: dead letter {each['id']}, {_since(each)}"


def _tier(found: Found) -> Iterator[str]:
    if "archive" in found:
        since = time_text(found["offloadedAt"])
        here = f", and here until its deletion: {found['location']}" if found["local"] else ""
        yield f"offloaded {since} to {found['archive']}{here}"


def _since(event: Found) -> str:
    tries = f", retried {event['tries']} times" if event["tries"] else ""
    return f"of {time_text(event['publishTime'])}{tries}"


# -- offload -----------------------------------------------------------------------

_LOOK_EVERY_S = 0.2


@ledgers.command("offload")
@click.argument("topic")
@click.option(
    "--size-threshold",
    "kept_bytes",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="BYTES",
    help="The newest ledgers with so many bytes together stay.",
)
@click.option("--wait", "waits", is_flag=True, help="Wait until it ends, and show the result.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    help="Maximum seconds to wait.",
)
@with_admin
def offload(
    show: Output, admin: Admin, topic: str, kept_bytes: int, waits: bool, timeout: float
) -> None:
    """Move the complete ledgers of TOPIC to the archive of the cluster.

    \b
    Example:
      velaray ledgers offload orders --size-threshold 1000000000 --wait
    """
    admin.topics.offload(topic, kept_bytes)
    if not waits:
        show.done(f"offloading {topic}", offloading=topic)
        return
    pause = Event()
    for _ in range(round(timeout / _LOOK_EVERY_S)):
        found = admin.topics.offload_status(topic)
        if found["status"] != "RUNNING":
            break
        pause.wait(_LOOK_EVERY_S)
    else:
        raise click.ClickException(f"{topic} is still being offloaded after {timeout:g} s")
    if found["status"] == "ERROR":
        raise click.ClickException(f"offloading {topic} failed: {found['lastError']}")
    show.done(f"{topic}: {found['status']}", topic=topic, **found)


# -- dead letters ------------------------------------------------------------------


@ledgers.group("dlq", cls=Group)
def dlq() -> None:
    """Inspect and retry failed deletions."""


@dlq.command("list")
@with_admin
def list_dead(show: Output, admin: Admin) -> None:
    """List the unresolved dead letters.

    \b
    Example:
      velaray ledgers dlq list
    """
    columns = {
        "id": "ID",
        "ledgerId": "LEDGER",
        "component": "COMPONENT",
        "topicName": "TOPIC",
        "cursorName": "SUBSCRIPTION",
        "since": "FAILED AT",
    }
    found = admin.dead_ledgers()
    if show.as_json:
        show.value(found)
        return
    show.rows(columns, [{**each, "since": time_text(each["publishTime"])} for each in found])


_ids = click.argument("ids", nargs=-1)
_all = click.option("--all", "every", is_flag=True, help="All dead letters.")


def _wanted(ids: tuple[str, ...], every: bool) -> list[str] | None:
    if every == bool(ids):
        raise click.UsageError("name dead letters by their IDs, or give --all")
    return None if every else list(ids)


@dlq.command("retry")
@_ids
@_all
@with_admin
def retry(show: Output, admin: Admin, ids: tuple[str, ...], every: bool) -> None:
    """Retry the deletions of dead letters IDS.

    \b
    Example:
      velaray ledgers dlq retry --all
    """
    count = admin.retry_dead_ledgers(_wanted(ids, every))
    show.done(f"retrying {count} deletions", retried=count)


@dlq.command("forget")
@_ids
@_all
@destroys("forget failed deletions, whose ledgers stay as orphans")
@with_admin
def forget(show: Output, admin: Admin, ids: tuple[str, ...], every: bool) -> None:
    """Remove dead letters IDS from the list; their ledgers stay as orphans.

    \b
    Example:
      velaray ledgers dlq forget --all
    """
    count = admin.forget_dead_ledgers(_wanted(ids, every))
    show.done(f"removed {count} dead letters", forgotten=count)
