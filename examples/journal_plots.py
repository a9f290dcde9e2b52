"""What a demo's own journals tell, as plots: a cluster's data directory is all that is needed.

Reads the journals of coordinators, of one topic's partitions and of one of its subscriptions with
Spark's ``format("velaray-journal")``, and draws transactions per minute, how long commits take,
and the backlog over time. Keep a demo's journals with
``python examples/transactions_under_fire.py --keep FOLDER``; then
``python examples/journal_plots.py FOLDER/data PLOTS``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from pyspark.sql import DataFrame, SparkSession

from velaray.pipelines import register

matplotlib.use("Agg")
from matplotlib import pyplot as plt

BIN_S = 5
SIZE = (9, 4)


def events(spark: SparkSession, data: Path, actor: str) -> DataFrame:
    """What happened to the actors of this name."""
    return spark.read.format("velaray-journal").options(data_dir=str(data), actor=actor).load()


def decisions(spark: SparkSession, data: Path) -> pd.DataFrame:
    """Of each transaction when it began, was decided and had ended, and its verdict.

    A commit of a series decides many transactions at once.
    """
    moments = (
        events(spark, data, "coordinator")
        .where("type like 'Transaction%' or type = 'SeriesCommitted'")
        .selectExpr("explode(transactions) as id", "type", "time", "event")
        .groupBy("id")
        .agg(*(_moment(name) for name in ("Begun", "Decided", "Finished")), _committed())
    )
    return moments.toPandas()


def _moment(name: str) -> Any:
    from pyspark.sql import functions as fn

    decides = " or type = 'SeriesCommitted'" if name == "Decided" else ""
    happened = fn.expr(f"case when type = 'Transaction{name}'{decides} then time end")
    return fn.min(happened).alias(name.lower())


def _committed() -> Any:
    from pyspark.sql import functions as fn

    # False values aren't in the event's fields.
    commits = "coalesce(get_json_object(event, '$.commit'), 'false') = 'true'"
    return fn.max(fn.expr(f"type = 'SeriesCommitted' or {commits}")).alias("committed")


def draw_rate(found: pd.DataFrame, file: Path) -> None:
    """Transactions per minute, by verdict."""
    decided = found.dropna(subset="decided").set_index("decided")
    figure, axes = plt.subplots(figsize=SIZE, layout="constrained")
    for verdict, chosen, colour in (
        ("committed", decided[decided.committed], "tab:green"),
        ("aborted", decided[~decided.committed], "tab:red"),
    ):
        rate = chosen.id.resample(f"{BIN_S}s").count() * 60 / BIN_S
        axes.step(rate.index, rate, where="post", label=f"{verdict} ({len(chosen):,})", c=colour)
    axes.set_ylabel("transactions per minute")
    axes.legend()
    figure.savefig(file)


def draw_latency(found: pd.DataFrame, file: Path) -> None:
    """How long transactions that committed took, from one moment to the other."""
    done = found[found.committed.astype(bool)]
    figure, axes = plt.subplots(figsize=SIZE, layout="constrained")
    for first, last in (("begun", "decided"), ("decided", "finished")):
        took = (done[last] - done[first]).dt.total_seconds().dropna().sort_values() * 1000
        share = [(number + 1) / len(took) for number in range(len(took))]
        axes.plot(took.clip(lower=0.5), share, label=f"{first} to {last}")
    axes.set(xscale="log", xlabel="ms (by the coordinators' clocks)", ylabel="share of commits")
    axes.legend()
    figure.savefig(file)


@dataclass
class Cursor:
    """What one subscription of one partition has, in entries."""

    end: int = 0
    mark: int = 0
    acked: set[int] = field(default_factory=set)

    @property
    def backlog(self) -> int:
        """Entries that are not acknowledged."""
        return self.end - self.mark - len(self.acked)

    def learn(self, name: str, event: dict[str, Any]) -> None:
        """Take in an event of the partition or of the subscription."""
        match name:
            case "EntryAppended":
                self.end += 1
            case "CursorCreated":
                self.mark = int(event.get("start_offset", 0))
            case "CursorReset":
                self.mark, self.acked = int(event.get("next_offset", 0)), set()
            case "MarkDeleted":
                self.mark = max(self.mark, int(event.get("before_offset", 0)))
                self.acked = {at for at in self.acked if at >= self.mark}
            case "EntriesAcked" | "EntriesExpired":
                offsets = set(_offsets([int(each) for each in event.get("ranges", ())]))
                self.acked |= {at for at in offsets if at >= self.mark}


def _offsets(packed: list[int]) -> Iterator[int]:
    """Ranges are pairs: how far from the end of the one before, and how long."""
    at = 0
    for gap, length in zip(packed[::2], packed[1::2], strict=True):
        yield from range(at + gap, at + gap + length)
        at += gap + length


def backlog(spark: SparkSession, data: Path, topic: str, subscription: str) -> pd.Series:
    """Un-acknowledged entries of all partitions, after each event that counts."""
    of_topic = f"public/default/{topic}/*"
    told = events(spark, data, f"partition/{of_topic}").where("type = 'EntryAppended'")
    told = told.union(events(spark, data, f"subscription/{of_topic}/{subscription}/*"))
    rows = told.selectExpr("split(actor, '/')[4] as partition", *told.columns)
    cursors: dict[str, Cursor] = {}
    found = []
    for row in rows.orderBy("time", "kind", "sequence").toLocalIterator():
        cursor = cursors.setdefault(row.partition, Cursor())
        cursor.learn(row.type, json.loads(row.event))
        found.append((row.time, sum(each.backlog for each in cursors.values())))
    return pd.Series(dict(found), dtype=int)


def draw_backlog(entries: pd.Series, what: str, file: Path) -> None:
    """The backlog over time."""
    figure, axes = plt.subplots(figsize=SIZE, layout="constrained")
    axes.step(entries.index, entries, where="post")
    axes.set_ylabel(f"backlog of {what}, entries")
    figure.savefig(file)


def draw(spark: SparkSession, data: Path, folder: Path, topic: str, subscription: str) -> int:
    """Read the journals in ``data`` and draw; returns how many transactions there were."""
    folder.mkdir(parents=True, exist_ok=True)
    found = decisions(spark, data)
    draw_rate(found, folder / "transactions.png")
    draw_latency(found, folder / "commits.png")
    entries = backlog(spark, data, topic, subscription)
    draw_backlog(entries, f"{subscription} at {topic}", folder / "backlog.png")
    return len(found)


def main() -> int:
    """Read the options, start Spark, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="the cluster's data directory")
    parser.add_argument("folder", type=Path, help="where the plots go, as PNG")
    parser.add_argument("--topic", default="flights", help="whose backlog to draw")
    parser.add_argument("--subscription", default="split", help="whose backlog to draw")
    options = parser.parse_args()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    try:
        register(spark)
        count = draw(spark, options.data, options.folder, options.topic, options.subscription)
    finally:
        spark.stop()
    print(f"{count:,} transactions; plots in {options.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
