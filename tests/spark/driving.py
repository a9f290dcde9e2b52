"""What Spark's driver does with a streaming source, without Spark: one batch after the other.

Quick, and to be stopped between any two steps. Starting a driver again is a restart from the
checkpoint, of which it keeps what Spark does: ends of batches, and which are committed.
"""

from __future__ import annotations

from typing import Any

from velaray.pipelines.spark_source import StreamSource


class Driver:
    """A query and its checkpoint; the rows of each batch that counts."""

    def __init__(self, **options: str) -> None:
        self._options = {"columns": "value", "starting_position": "earliest"} | options
        self.ends: list[dict[str, Any]] = []
        self.batches: list[list[bytes]] = []

    @property
    def values(self) -> list[bytes]:
        """All that came, in order."""
        return [value for batch in self.batches for value in batch]

    def run(self, **options: str) -> list[bytes]:
        """Start, do what batches there are, and stop; returns all that came so far."""
        source = StreamSource(self._options | options)
        try:
            if len(self.ends) > len(self.batches):
                self._do(source)
            while self.plan(source):
                self._do(source)
        finally:
            source.stop()
        return self.values

    def start(self, **options: str) -> StreamSource:
        """A source, for who does the steps one by one."""
        return StreamSource(self._options | options)

    def plan(self, source: StreamSource) -> bool:
        """Plan a batch and note its end; False if there is nothing to do."""
        if self.ends:
            source.commit(self.ends[-1])
        start = self._start(source, len(self.ends))
        end = source.latestOffset(start, source.getDefaultReadLimit())
        if end != start:
            self.ends.append(end)
        return end != start

    def _start(self, source: StreamSource, number: int) -> dict[str, Any]:
        return self.ends[number - 1] if number else source.initialOffset()

    def _do(self, source: StreamSource) -> None:
        """Read the last batch that was planned."""
        number = len(self.batches)
        tasks = source.partitions(self._start(source, number), self.ends[number])
        found = [batch for task in tasks for batch in source.read(task)]
        self.batches.append([value for batch in found for value in batch.column(0).to_pylist()])
