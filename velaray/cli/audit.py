"""``velaray audit``: the changes that were made through the admin interface."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from velaray.cli.admin import TimeType
from velaray.cli.common import Group, Output, time_text, with_admin
from velaray.cli.tokens import Lifetime
from velaray.client.admin import Admin

_PAGE = 500


class Since(click.ParamType):
    """A time, or how long ago it was, such as 12h."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Milliseconds since 1970."""
        if str(value)[-1:] in ("s", "m", "h", "d"):
            return int(time.time() - Lifetime().convert(value, param, ctx)) * 1000
        return TimeType().convert(value, param, ctx)


@click.group(cls=Group)
def audit() -> None:
    """Show the changes that were made through the admin interface."""


_COLUMNS = {
    "at": "TIME",
    "role": "ROLE",
    "address": "FROM",
    "client": "CLIENT",
    "operation": "OPERATION",
    "target": "TARGET",
    "outcome": "OUTCOME",
}


@audit.command("list")
@click.option(
    "--since", type=Since(), help="Only changes since then: a time, or how long ago, such as 12h."
)
@click.option("--role", metavar="ROLE", help="Only changes by this role.")
@click.option(
    "--operation", metavar="TEXT", help="Only operations whose method and path have this text."
)
@click.option(
    "--target", metavar="TEXT", help="Only changes of something whose name has this text."
)
@click.option(
    "--most", type=click.IntRange(1), default=100, show_default=True, help="Show so many changes."
)
@with_admin
def list_changes(show: Output, admin: Admin, since: int | None, most: int, **filters: Any) -> None:
    """List changes, the newest first. -o json also shows the parameters.

    \b
    Example:
      velaray audit list --since 24h --target shop/orders
    """
    found: list[Mapping[str, Any]] = []
    for record in _records(admin, most, since or 0, filters):
        found.append(record)
        if len(found) == most:
            break
    if show.as_json:
        show.value(found)
        return
    show.rows(_COLUMNS, [_row(record) for record in found])


def _records(
    admin: Admin, most: int, since_ms: int, filters: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    page: str | None = ""
    while page is not None:
        answer = admin.audit(since_ms=since_ms, most=min(most, _PAGE), page=page, **filters)
        yield from answer["records"]
        page = answer["next"]


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    outcome = record["outcome"] or "unknown"
    if record["reason"]:
        outcome += f" ({record['status']}: {record['reason']})"
    by = f" for {record['originalRole']}" if record["originalRole"] else ""
    return {
        "at": time_text(record["atMs"]),
        "role": f"{record['role'] or '-'}{by}",
        "address": record["address"],
        "client": record["client"],
        "operation": record["operation"],
        "target": record["target"] or "-",
        "outcome": outcome,
    }
