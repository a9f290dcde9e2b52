"""``velaray pipelines``: what Spark queries keep in the service, and its release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from velaray.cli.common import Group, Output, time_text, with_admin, with_service
from velaray.cli.confirmation import destroys
from velaray.client.admin import Admin
from velaray.client.admin.pipelines import ABANDONED_S

if TYPE_CHECKING:
    from velaray.sync.client import Client


@click.group(cls=Group)
def pipelines() -> None:
    """Maintain pipelines on Spark."""


_COLUMNS = {
    "topic": "TOPIC",
    "subscription": "SUBSCRIPTION",
    "state": "STATE",
    "since": "WITHOUT A DRIVER SINCE",
    "entries": "ENTRIES",
    "bytes": "BYTES",
    "oldest": "OLDEST S",
}


@pipelines.command()
@click.argument("topics", nargs=-1)
@click.option(
    "--namespace",
    default="public/default",
    show_default=True,
    help="Without TOPICS: all topics of this namespace.",
)
@click.option(
    "--idle",
    type=click.IntRange(min=0),
    default=ABANDONED_S,
    show_default=True,
    metavar="SECONDS",
    help="A mark that holds messages is abandoned after this time without a driver.",
)
@click.option("--abandoned", is_flag=True, help="Only abandoned marks.")
@with_admin
def marks(
    show: Output,
    admin: Admin,
    topics: tuple[str, ...],
    namespace: str,
    idle: int,
    abandoned: bool,
) -> None:
    """List the retention marks of Spark queries on TOPICS, and what each holds.

    A mark is a subscription that keeps what a query may read. It stays when the query ends;
    `velaray pipelines release` deletes it. All topics are started.

    \b
    Examples:
      velaray pipelines marks
      velaray pipelines marks orders --abandoned --idle 86400
    """
    named = topics or tuple(admin.topics(namespace))
    found = [mark for topic in named for mark in admin.pipelines.marks(topic, idle)]
    found = [mark for mark in found if mark["abandoned"] or not abandoned]
    if show.as_json:
        show.value(found)
        return
    show.rows(_COLUMNS, [{**mark, **_told(mark)} for mark in found])


def _told(mark: dict[str, Any]) -> dict[str, Any]:
    state = "is read" if mark["connected"] else "not read"
    active_ms = mark["lastActiveMs"]
    return {
        "state": "abandoned" if mark["abandoned"] else state,
        "since": None if active_ms is None else time_text(active_ms),
        "oldest": round(mark["oldestSeconds"]),
    }


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
@destroys("delete the retention marks of a query: messages that only they hold can be trimmed then")
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
      velaray pipelines release --checkpoint checkpoints/orders --sink totals --yes
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
