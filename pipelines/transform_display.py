"""The progress of a transform, for the terminal."""

from __future__ import annotations

from rich.table import Table

from velaray.pipelines.transform_counts import TransformProgress


def progress_table(progress: TransformProgress) -> Table:
    """The current progress as a table of one row."""
    counts = progress.counts
    backlog = "?" if progress.backlog is None else f"{progress.backlog:,}"
    table = Table.grid(padding=(0, 2))
    table.add_row(
        f"consumed [green]{counts.consumed:,}[/]",
        f"produced [green]{counts.produced:,}[/]",
        f"[bold]{progress.rate:,.0f}[/]/s",
        f"backlog [cyan]{backlog}[/]",
        f"committed {counts.committed:,}",
        f"aborted [yellow]{counts.aborted:,}[/]",
        f"retried [yellow]{counts.retried:,}[/]",
        f"dead [red]{counts.dead:,}[/]",
        f"workers {len(progress.workers)} ([red]{progress.deaths}[/] died)",
    )
    return table
