"""``velaray topics compact`` and ``velaray topics compaction-status``."""

from __future__ import annotations

import threading

import click

from velaray.cli.admin import topics
from velaray.cli.common import Output, with_admin
from velaray.client.admin import Admin

# The group, with the commands of this module.
__all__ = ["topics"]

_LOOK_EVERY_S = 0.2


def _finished(admin: Admin, topic: str, timeout: float) -> dict[str, str]:
    """The status once no compaction runs. Raises `click.ClickException` after ``timeout`` s."""
    pause = threading.Event()
    for _ in range(round(timeout / _LOOK_EVERY_S)):
        found = admin.compaction_status(topic)
        if found["status"] != "RUNNING":
            return found
        pause.wait(_LOOK_EVERY_S)
    raise click.ClickException(f"{topic} is still being compacted after {timeout:g} s")


def _show(show: Output, topic: str, found: dict[str, str]) -> None:
    if found["status"] == "ERROR":
        raise click.ClickException(f"compacting {topic} failed: {found['lastError']}")
    show.done(f"{topic}: {found['status']}", topic=topic, **found)


_wait = click.option("--wait", is_flag=True, help="Wait until it ends, and show the result.")
_timeout = click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    help="Maximum seconds to wait.",
)


@topics.command("compact")
@click.argument("topic")
@_wait
@_timeout
@with_admin
def compact(show: Output, admin: Admin, topic: str, wait: bool, timeout: float) -> None:
    """Start to compact TOPIC: readers of the compacted topic get the newest message of each key.

    The log stays unchanged for all other readers and consumers.

    \b
    Example:
      velaray topics compact orders --wait
    """
    admin.compact(topic)
    if wait:
        _show(show, topic, _finished(admin, topic, timeout))
    else:
        show.done(f"compacting {topic}", compacting=topic)


@topics.command("compaction-status")
@click.argument("topic")
@_wait
@_timeout
@with_admin
def compaction_status(show: Output, admin: Admin, topic: str, wait: bool, timeout: float) -> None:
    """Show the status of the last compaction of TOPIC.

    \b
    Example:
      velaray topics compaction-status orders
    """
    found = _finished(admin, topic, timeout) if wait else admin.compaction_status(topic)
    _show(show, topic, found)
