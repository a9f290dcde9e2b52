"""``velaray backup``: backups of a whole cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from velaray.cli.common import Group, Output, time_text, with_keys, with_output
from velaray.cli.journal import MachineFold, with_data

if TYPE_CHECKING:
    from velaray.backup.listing import Listing


@click.group(cls=Group)
def backup() -> None:
    """Make, verify and restore backups of a cluster's data.

    PLACE is a directory or the URL of an object store. It holds any number of backups, which share
    the bytes that they have in common.
    """


_number = click.option(
    "--number", type=click.IntRange(min=1), help="The backup.  [default: the newest complete one]"
)


@backup.command("create")
@click.argument("place")
@with_data
@with_output
def create(show: Output, place: str, data: str) -> None:
    """Make a backup in PLACE, while the cluster runs.

    It has all journals as they were at one moment, with everything that was acknowledged before the
    command began. Only bytes that earlier backups in PLACE lack are copied.

    \b
    Example:
      velaray backup create /backups --data velaray-data
    """
    from velaray.backup import places

    listing, copied = asyncio.run(places.create(data, place))
    show.done(
        f"backup {listing.number} is complete: {len(listing.journals)} journals, {copied.bytes} "
        f"new bytes",
        **_facts(listing),
        bytesCopied=copied.bytes,
        leftOut=list(listing.left_out),
    )
    if listing.left_out and not show.as_json:
        click.echo(f"left out, since they were being deleted: {', '.join(listing.left_out)}")


@backup.command("verify")
@click.argument("place")
@_number
@with_keys
@with_output
def verify(show: Output, place: str, number: int | None) -> None:
    """Read every record of a backup in PLACE: sizes, digests, checksums, states.

    It fails if anything is missing or damaged.

    \b
    Example:
      velaray backup verify s3://bucket/backups
    """
    from velaray.backup import places

    listing, reports = asyncio.run(places.verify(place, number, MachineFold))
    broken = [report for report in reports if report.problems]
    if show.as_json:
        problems = {report.key: report.problems for report in broken}
        show.value({**_facts(listing), "problems": problems})
    else:
        columns = {
            "key": "KEY",
            "ledgers": "LEDGERS",
            "records": "EVENTS",
            "bytes": "BYTES",
            "problems": "PROBLEMS",
        }
        show.rows(columns, [{name: getattr(each, name) for name in columns} for each in reports])
    if broken:
        keys = ", ".join(report.key for report in broken)
        raise click.ClickException(f"backup {listing.number} isn't sound: {keys}")


@backup.command("restore")
@click.argument("place")
@click.argument("data")
@_number
@with_keys
@with_output
def restore(show: Output, place: str, data: str, number: int | None) -> None:
    """Copy a backup in PLACE into DATA, an empty directory or object store.

    Start the cluster with --data or --store DATA then.

    \b
    Example:
      velaray backup restore /backups new-data --number 3
    """
    from velaray.backup import places
    from velaray.starting import ClusterError

    try:
        listing, moved = asyncio.run(places.restore(place, number, data))
    except ClusterError as error:
        raise click.ClickException(str(error)) from error
    show.done(
        f"backup {listing.number} of {time_text(listing.moment_ms)} is in {data}: "
        f"{moved.journals} journals, {moved.bytes} bytes",
        **_facts(listing),
    )


def _facts(listing: Listing) -> dict[str, Any]:
    stored = [ledger for each in listing.journals.values() for ledger in each.ledgers.values()]
    return {
        "number": listing.number,
        "moment": listing.moment_ms,
        "journals": len(listing.journals),
        "ledgers": len(stored),
        "bytes": sum(ledger.size for ledger in stored),
    }
