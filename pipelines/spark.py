"""Spark's data source ``velaray``."""

from __future__ import annotations

try:
    import pyarrow  # noqa: F401
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceStreamArrowWriter,
    )
except ImportError as error:
    raise ImportError(
        "velaray's Spark source and sink need pyspark 4.2 or newer, pyarrow and pandas:"
        f" pip install 'velaray[spark]' ({error})"
    ) from error
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from velaray.pipelines.spark_sink import BatchSink, StreamSink


class VelarayDataSource(DataSource):
    """Topics as Spark's tables."""

    @classmethod
    def name(cls) -> str:
        """What ``format`` takes."""
        return "velaray"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """The sink of a streaming query."""
        return StreamSink(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The sink of a batch query."""
        return BatchSink(self.options, schema, overwrite)


def register(spark: SparkSession) -> None:
    """Give a session ``format("velaray")``."""
    spark.dataSource.register(VelarayDataSource)
