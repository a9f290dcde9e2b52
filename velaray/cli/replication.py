"""``velaray replication``: the state of replication to other clusters."""

from __future__ import annotations

from typing import Any

import click

from velaray.cli.common import Group, Output, with_admin
from velaray.cli.confirmation import destroys
from velaray.client.admin import Admin

_COLUMNS = {
    "topic": "TOPIC",
    "cluster": "CLUSTER",
    "state": "STATE",
    "backlog": "BACKLOG ENTRIES",
    "backlog_bytes": "BYTES",
    "lag_s": "LAG S",
    "progress_lag_s": "PROGRESS LAG S",
    "rate_in": "MSG/S IN",
    "rate_out": "MSG/S OUT",
    "reason": "REASON",
}


@click.group(cls=Group)
def replication() -> None:
    """Inspect replication to other clusters."""


@replication.command("status")
@click.argument("topic", required=False)
@click.option("--namespace", help="Show the topics of this namespace (tenant/namespace).")
@with_admin
def status(show: Output, admin: Admin, topic: str | None, namespace: str | None) -> None:
    """Show the replicators of TOPIC, of a namespace, or of the whole cluster.

    Without TOPIC, only running partitions are listed: a passivated one has nothing to replicate.
    LAG is the age of the oldest message that the other cluster hasn't confirmed, PROGRESS LAG that
    of the oldest acknowledgement.

    \b
    Example:
      velaray replication status --namespace public/default
    """
    if topic is not None and namespace is not None:
        raise click.UsageError("give TOPIC or --namespace, not both")
    show.rows(_COLUMNS, [_row(each) for each in admin.replication(topic, namespace)])


@replication.command("give-up")
@click.argument("cluster")
@click.argument("topics", nargs=-1, required=True)
@destroys("hide the incomplete transactions of {cluster} for ever")
@with_admin
def give_up(show: Output, admin: Admin, cluster: str, topics: tuple[str, ...]) -> None:
    """Hide the incomplete transactions of CLUSTER in TOPICS permanently.

    Use it when CLUSTER is lost, or when it no longer replicates some topics of these transactions:
    consumers can't read past an incomplete transaction. Complete transactions are released instead.

    \b
    Example:
      velaray replication give-up west orders
    """
    columns = {"topic": "TOPIC", "given_up": "GIVEN UP", "released": "RELEASED"}
    show.rows(columns, admin.give_up(cluster, topics))


def _row(found: dict[str, Any]) -> dict[str, Any]:
    reasons = [found["reason"], found["progress_reason"], found.get("transactions_reason", "")]
    return {
        **found,
        "lag_s": round(found["lag_ms"] / 1000, 1),
        "progress_lag_s": round(found["progress_lag_ms"] / 1000, 1),
        "rate_in": round(found["rate_in"], 1),
        "rate_out": round(found["rate_out"], 1),
        "reason": "; ".join(reason for reason in reasons if reason) or None,
    }
