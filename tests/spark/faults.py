"""The data source with faults between any two steps of a commit, each of which happens once."""

import json
from pathlib import Path

from pyspark import TaskContext

from velaray.pipelines.spark import VelarayDataSource
from velaray.pipelines.spark_sink import StreamSink


class Fault(RuntimeError):
    """What a test has made fail."""


class FaultySink(StreamSink):
    """Fails as its folder says: files there name the faults that are to happen yet."""

    def __init__(self, options, schema):
        given = dict(options)
        self._faults = Path(given.pop("faults"))
        super().__init__(given, schema)

    def _strike(self, fault):
        file = self._faults / fault
        if file.exists():
            file.unlink()
            raise Fault(fault)

    def write(self, iterator):
        """Publish; perhaps fail in the middle, or when all is published."""
        prepared = super().write(self._rows(iterator))
        if TaskContext.get().partitionId() == 0 and (self._faults / "after write").exists():
            (self._faults / "lost").write_text(json.dumps([prepared.series, *prepared.txn]))
            self._strike("after write")
        return prepared

    def _rows(self, iterator):
        for batch in iterator:
            yield batch
            self._strike("in write")

    def commit(self, messages, batchId):
        """Commit; perhaps fail before it or after."""
        self._strike("before commit")
        super().commit(messages, batchId)
        self._strike("after commit")


class FaultyDataSource(VelarayDataSource):
    """``format("velaray-faulty")``"""

    @classmethod
    def name(cls):
        """What ``format`` takes."""
        return "velaray-faulty"

    def streamWriter(self, schema, overwrite):
        """The sink with faults."""
        return FaultySink(self.options, schema)
