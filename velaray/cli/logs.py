"""``velaray logs``: the log lines of an actor, a topic or a process of the cluster."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import click

from velaray.cli.log_lines import LEVELS, Lines, Record

if TYPE_CHECKING:
    from velaray.topology.ray_logs import NodeLogs

_LOOK_S: Final = 1.0


@click.command()
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on with further lines until Ctrl-C.")
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    default=LEVELS[0],
    show_default=True,
    help="Least level of the lines.",
)
@click.option("--cluster", default="standalone", show_default=True, help="Name of the cluster.")
@click.option(
    "--ray-address",
    default="auto",
    show_default=True,
    metavar="ADDRESS",
    help="Address of the cluster's Ray.",
)
@click.option(
    "--file",
    type=click.File("r", encoding="utf-8", errors="replace"),
    help="Read this output of `velaray start --local` instead of Ray's files; - is standard input.",
)
def logs(
    name: str,
    follow: bool,
    level: str,
    cluster: str,
    ray_address: str,
    file: io.TextIOWrapper | None,
) -> None:
    """Show the log lines of NAME: an actor's key, a topic, or a process such as host/0.

    The lines of all nodes of Ray are shown in the order of their times, also those of earlier
    processes. Without a running Ray those of this machine are read.

    \b
    Examples:
      velaray logs host/0 --follow
      velaray logs orders --level warning
      velaray logs orders --file -
    """
    if file is not None:
        _show_file(file, Lines(name, level), follow and file is not sys.stdin)
        return
    from velaray.topology.ray_logs import node_logs

    nodes = node_logs(ray_address, cluster)
    try:
        _show(nodes, Lines(name, level), follow)
    finally:
        nodes.close()


def _show(nodes: NodeLogs, lines: Lines, follow: bool) -> None:
    pause = threading.Event()
    while True:
        found: list[Record] = []
        for process, text in nodes.read():
            found += lines.records(text.splitlines(), process)
        for record in sorted(found, key=lambda record: record.time):
            click.echo(record.text)
        if not follow:
            return
        pause.wait(_LOOK_S)


def _show_file(file: Iterable[str], lines: Lines, follow: bool) -> None:
    pause = threading.Event()
    while True:
        for record in lines.records(file):
            click.echo(record.text)
        if not follow:
            return
        pause.wait(_LOOK_S)
