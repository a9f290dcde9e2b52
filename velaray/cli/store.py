"""``velaray store``: the place of a cluster's journals."""

from __future__ import annotations

import asyncio

import click

from velaray.cli.common import Group, JournalsPlace, Output, with_keys, with_output


@click.group(cls=Group)
def store() -> None:
    """Move the data of a cluster."""


@store.command("copy")
@click.argument("source", type=JournalsPlace())
@click.argument("target")
@with_keys
@with_output
def copy(show: Output, source: str, target: str) -> None:
    """Copy the data of a stopped cluster from SOURCE to TARGET.

    Each is a directory or the URL of an object store; TARGET must be empty. Start the cluster on
    TARGET then, and never again on SOURCE: both are the same data.

    \b
    Example:
      velaray store copy velaray-data s3://bucket/velaray
    """
    from velaray.backup import places
    from velaray.starting import ClusterError

    try:
        moved = asyncio.run(places.copy(source, target))
    except ClusterError as error:
        raise click.ClickException(str(error)) from error
    show.done(
        f"copied {moved.journals} journals, {moved.ledgers} ledgers, {moved.bytes} bytes",
        journals=moved.journals,
        ledgers=moved.ledgers,
        bytes=moved.bytes,
    )
