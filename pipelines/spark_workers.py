"""The check that Spark's Python workers can import velaray."""

from __future__ import annotations

import sys
from collections.abc import Callable

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from velaray.pipelines.spark_on_ray_needs import SparkSetupError

_REMEDY = (
    "Stop the session, set PYSPARK_PYTHON to a Python where velaray[spark] is installed, on every"
    f" node, and make the session again; this process runs {sys.executable}"
)


def check_workers(spark: SparkSession) -> None:
    """Run a task that imports velaray.

    Raises `SparkSetupError`; its text mentions PYSPARK_PYTHON.
    """
    # Without Arrow, which a Python without velaray may lack, too.
    probe = udf(_probe(), "string", useArrow=False)
    try:
        found = spark.range(0, 1, 1, 1).select(probe("id")).collect()[0][0]
    except (PySparkException, Py4JError) as error:
        text = " ".join(str(error).split("\tat ")[0].split())
        raise SparkSetupError(f"Spark's Python workers run no task: {text}. {_REMEDY}") from error
    if found:
        raise SparkSetupError(f"Spark's Python workers can't import velaray: {found}. {_REMEDY}")


def _probe() -> Callable[[int], str]:
    # Spark sends a function by name, or by code if it is local to another function. A worker
    # without velaray can run only the latter.
    def probe(_: int) -> str:
        import sys

        try:
            import velaray.pipelines.spark_sink  # noqa: F401
        except ImportError as error:
            return f"{sys.executable}: {error}"
        return ""

    return probe
