"""The data source with faults between any two steps of a batch, each of which happens once."""

import os
import signal
from pathlib import Path

from pyspark import TaskContext

from tests.support.waiting import wait_until
from velaray.pipelines.spark import VelarayDataSource
from velaray.pipelines.spark_sink import StreamSink
from velaray.pipelines.spark_source import StreamSource


class Fault(RuntimeError):
    """What a test has made fail."""


class Faulty:
    """Fails as its folder says: files there name the faults that are to happen yet."""

    def __init__(self, options, *args):
        given = dict(options)
        self._faults = Path(given.pop("faults"))
        super().__init__(given, *args)

    def _strike(self, fault):
        file = self._faults / fault
        if file.exists():
            file.unlink()
            raise Fault(fault)


class FailingSource(Faulty, StreamSource):
    """Fails beside the move of its mark."""

    def commit(self, end):
        """What Spark calls before it plans the next batch."""
        self._strike("before the mark moves")
        super().commit(end)
        self._strike("after the mark moved")


class FaultySink(Faulty, StreamSink):
    """Fails in tasks and beside the commit."""

    def _wait(self, fault):
        """Let others do something meanwhile; they end it by removing a file."""
        if (self._faults / fault).exists():
            (self._faults / fault).unlink()
            (self._faults / "waiting").touch()
            wait_until(lambda: not (self._faults / "waiting").exists(), 60)

    def write(self, iterator):
        """Publish; perhaps fail in the middle, or when all is published."""
        prepared = super().write(self._rows(iterator))
        if TaskContext.get().partitionId() == 0:
            self._strike("after write")
        return prepared

    def _rows(self, iterator):
        for batch in iterator:
            yield batch
            self._strike("in write")

    def commit(self, messages, batchId):
        """Commit; perhaps fail before it or after."""
        self._strike("before commit")
        self._wait("wait before commit")
        super().commit(messages, batchId)
        self._strike("after commit")


class FaultyDataSource(VelarayDataSource):
    """``format("velaray-faulty")``"""

    @classmethod
    def name(cls):
        """What ``format`` takes."""
        return "velaray-faulty"

    def streamReader(self, schema):
        """The source with faults."""
        return FailingSource(self.options)

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
