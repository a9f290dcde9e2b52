"""``velaray replication``: how far other clusters are behind this one."""

from __future__ import annotations

from typing import Any

import click

from velaray.cli.common import Output, with_admin
from velaray.client.admin import Admin

_COLUMNS = {
    "topic": "TOPIC",
    "cluster": "CLUSTER",
    "state": "STATE",
    "backlog": "BACKLOG",
    "backlog_bytes": "BYTES",
    "lag_s": "LAG S",
    "progress_lag_s": "PROGRESS LAG S",
    "rate_in": "IN/S",
    "rate_out": "OUT/S",
    "reason": "REASON",
}


@click.group()
def replication() -> None:
    """Replication to other clusters."""


@replication.command("status")
@click.argument("topic", required=False)
@click.option("--namespace", help="Show the topics of this namespace (tenant/namespace).")
@with_admin
def status(show: Output, admin: Admin, topic: str | None, namespace: str | None) -> None:
    """Show the replicators of TOPIC, of a namespace, or of the whole cluster.

    Without TOPIC those of partitions that run now: one that sleeps has nothing to replicate. LAG is
    the age of the oldest message that the other cluster hasn't confirmed, PROGRESS LAG that of the
    oldest acknowledgement.
    """
    if topic is not None and namespace is not None:
        raise click.UsageError("give TOPIC or --namespace, not both")
    show.rows(_COLUMNS, [_row(each) for each in admin.replication(topic, namespace)])


@replication.command("give-up")
@click.argument("cluster")
@click.argument("topics", nargs=-1, required=True)
@with_admin
def give_up(show: Output, admin: Admin, cluster: str, topics: tuple[str, ...]) -> None:
    """Hide for good what came to TOPICS of transactions of CLUSTER that never come as a whole.

    For when CLUSTER is lost, or doesn't replicate some of their topics any more: nobody reads past
    what is incomplete. What is all there is released instead.
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
