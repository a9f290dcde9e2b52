"""The data source with faults between any two steps of a batch, each of which happens once."""

import json
import os
import signal
from pathlib import Path

from pyspark import TaskContext

from velaray.pipelines.spark import VelarayDataSource
from velaray.pipelines.spark_sink import StreamSink
from velaray.pipelines.spark_source import StreamSource


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


class FaultySource(StreamSource):
    """Fails, or takes its whole process along, as its folder says."""

    def __init__(self, options):
        given = dict(options)
        self._faults = Path(given.pop("faults"))
        super().__init__(given)

    def latestOffset(self, start, limit):
        """Plan a batch; perhaps die then."""
        found = super().latestOffset(start, limit)
        self._die("after planning")
        return found

    def partitions(self, start, end):
        """Plan the tasks; perhaps die."""
        found = super().partitions(start, end)
        self._die("before reading")
        return found

    def read(self, partition):
        """Read; perhaps fail in the middle."""
        for batch in super().read(partition):
            yield batch.slice(0, batch.num_rows // 2)
            if (self._faults / "in reading").exists():
                (self._faults / "in reading").unlink()
                raise Fault("in reading")
            yield batch.slice(batch.num_rows // 2)

    def commit(self, end):
        """Move the mark; perhaps die before it."""
        self._die("before moving the mark")
        super().commit(end)

    def _die(self, fault):
        file = self._faults / fault
        if file.exists():
            file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


class FaultySourceAndSink(FaultyDataSource):
    """``format("velaray-faulty-source")``"""

    @classmethod
    def name(cls):
        """What ``format`` takes."""
        return "velaray-faulty-source"

    def streamReader(self, schema):
        """The source with faults."""
        return FaultySource(self.options)
