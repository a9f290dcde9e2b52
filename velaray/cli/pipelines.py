"""``velaray pipelines``: leftovers of Spark queries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from velaray.cli.common import Group, Output, with_service

if TYPE_CHECKING:
    from velaray.sync.client import Client


@click.group(cls=Group)
def pipelines() -> None:
    """Maintain pipelines on Spark."""


@pipelines.command()
@click.option(
    "--checkpoint",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The query's checkpoint folder.",
)
@click.option(
    "--sink",
    "sinks",
    multiple=True,
    help='The option "name" of a sink of the query; may be repeated.',
)
@click.option("--subscription", help="Instead of a checkpoint: the source's subscription.")
@click.option(
    "--topic", "topics", multiple=True, help="With --subscription: a topic that it reads."
)
@with_service
def release(
    show: Output,
    client: Client,
    checkpoint: Path | None,
    sinks: tuple[str, ...],
    subscription: str | None,
    topics: tuple[str, ...],
) -> None:
    """Delete the retention marks and commit sequences of a Spark query that isn't needed any more.

    Without the marks of its source, unread messages can be trimmed. The commit sequences are those
    of its sinks. Repeating it is harmless.

    \b
    Example:
      velaray pipelines release --checkpoint checkpoints/orders --sink totals
    """
    from velaray.spark_queries import release as let_go

    if (checkpoint is None) == (subscription is None) or (subscription and not topics):
        raise click.UsageError("give --checkpoint, or --subscription with --topic")
    found = let_go(
        client, checkpoint=checkpoint, sinks=sinks, subscription=subscription, topics=topics
    )
    show.done(
        f"released {len(found.marks)} retention marks, {len(found.series)} commit sequences",
        marks=[{"partition": name, "subscription": mark} for name, mark in found.marks],
        series=list(found.series),
    )
