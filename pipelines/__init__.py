"""Data pipelines over topics.

A `Transform` consumes, processes and produces exactly once. `TransformRun` runs it on Ray,
`TransformWorker` in one process. `register` adds the source and sink ``velaray`` to a Spark
session. `batch_writer` writes to many topics within ``foreachBatch``. `lag` is how far a streaming
query is behind. `SparkOnRay` is a Spark cluster on Ray, and `on_spark` starts Ray and velaray on
Spark. ``velaray[spark]`` installs the dependencies of the Spark parts. `read_topic` and `TopicSink`
are a source and a sink for Ray Data.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from velaray.pipelines.on_spark_cluster import RayOnSpark as RayOnSpark
    from velaray.pipelines.on_spark_cluster import on_spark as on_spark
    from velaray.pipelines.ray_data_read import read_topic as read_topic
    from velaray.pipelines.ray_data_sink import TopicSink as TopicSink
    from velaray.pipelines.spark import register as register
    from velaray.pipelines.spark_batches import BatchWriter as BatchWriter
    from velaray.pipelines.spark_batches import batch_writer as batch_writer
    from velaray.pipelines.spark_lag import lag as lag
    from velaray.pipelines.spark_on_ray import SparkOnRay as SparkOnRay
    from velaray.pipelines.spark_on_ray_needs import NotEnoughResources as NotEnoughResources
    from velaray.pipelines.spark_on_ray_needs import SparkMissing as SparkMissing
    from velaray.pipelines.spark_on_ray_needs import SparkSetupError as SparkSetupError
    from velaray.pipelines.transform import Output as Output
    from velaray.pipelines.transform import Transform as Transform
    from velaray.pipelines.transform_counts import TransformCounts as TransformCounts
    from velaray.pipelines.transform_counts import TransformProgress as TransformProgress
    from velaray.pipelines.transform_run import TransformRun as TransformRun
    from velaray.pipelines.transform_worker import TransformWorker as TransformWorker
    from velaray.spark_queries import release as release

# Imported on first use: the import of Ray takes a second.
_HOMES = {
    "BatchWriter": "spark_batches",
    "NotEnoughResources": "spark_on_ray_needs",
    "Output": "transform",
    "RayOnSpark": "on_spark_cluster",
    "SparkMissing": "spark_on_ray_needs",
    "SparkOnRay": "spark_on_ray",
    "SparkSetupError": "spark_on_ray_needs",
    "TopicSink": "ray_data_sink",
    "Transform": "transform",
    "TransformCounts": "transform_counts",
    "TransformProgress": "transform_counts",
    "TransformRun": "transform_run",
    "TransformWorker": "transform_worker",
    "batch_writer": "spark_batches",
    "lag": "spark_lag",
    "on_spark": "on_spark_cluster",
    "read_topic": "ray_data_read",
    "register": "spark",
    "release": "velaray.spark_queries",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'velaray.pipelines' has no attribute {name!r}")
    home = _HOMES[name]
    value = getattr(import_module(home if "." in home else f"velaray.pipelines.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
