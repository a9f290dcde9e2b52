"""Spark's data source ``velaray``, and the registration of it and ``velaray-journal``."""

from __future__ import annotations

from functools import cached_property

from velaray.pipelines.spark_on_ray_needs import SparkMissing

try:
    import pyarrow  # noqa: F401
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
except ImportError as error:
    raise SparkMissing(
        "velaray's Spark source and sink need pyspark 4.2 or newer, pyarrow and pandas:"
        f" pip install 'velaray[spark]' ({error})"
    ) from error
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from velaray.pipelines.rows import columns_named, ddl
from velaray.pipelines.spark_batch import BatchSource
from velaray.pipelines.spark_journal import JournalDataSource
from velaray.pipelines.spark_sink import BatchSink, StreamSink
from velaray.pipelines.spark_source import StreamSource
from velaray.pipelines.spark_typed import typed_value
from velaray.pipelines.spark_workers import check_workers
from velaray.pipelines.typed_values import TypedValue


class VelarayDataSource(DataSource):
    """Topics as Spark's tables; see docs/pipelines.md for options and columns."""

    @classmethod
    def name(cls) -> str:
        """The name for Spark's ``format``."""
        return "velaray"

    def schema(self) -> str:
        """The columns to read: those of option ``columns``, or all."""
        return ddl(columns_named(self.options.get("columns")), self._typed)

    @cached_property
    def _typed(self) -> TypedValue | None:
        """The value's type, looked up once: it is sent with this object to planners and tasks."""
        return typed_value(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The source of a streaming query."""
        return StreamSource(self.options, self._typed)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The source of a batch query."""
        return BatchSource(self.options, self._typed)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """The sink of a streaming query."""
        return StreamSink(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The sink of a batch query."""
        return BatchSink(self.options, schema, overwrite)


def register(spark: SparkSession) -> None:
    """Register ``format("velaray")`` and ``format("velaray-journal")`` with a session.

    A task checks that Spark's Python workers can import velaray. Raises `SparkSetupError` if not.
    """
    check_workers(spark)
    spark.dataSource.register(VelarayDataSource)
    spark.dataSource.register(JournalDataSource)
