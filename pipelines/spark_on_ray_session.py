"""A Spark session of this process, and the end of its JVM."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from velaray.pipelines.spark_on_ray_needs import SparkSetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JVM_STOP_S = 15.0


class SessionMaker:
    """Makes sessions of one Spark cluster, and ends the driver's JVM if it started that."""

    def __init__(self, master_url: str, host: str, secret: str, config: Mapping[str, str]) -> None:
        self._master_url = master_url
        self._secret = secret
        self._owns_jvm = False
        self._config = {
            "spark.driver.host": host,
            "spark.driver.bindAddress": host,
            "spark.authenticate": "true",
            **config,
        }

    def session(self, name: str, config: Mapping[str, str]) -> SparkSession:
        """Return a session with ``format("velaray")``.

        Raises `SparkSetupError` if this process has a session of another cluster.
        """
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession

        from velaray.pipelines.spark import register

        running = SparkContext._active_spark_context
        if running is not None and running.master != self._master_url:
            raise SparkSetupError(
                f"a Spark session of {running.master} runs in this process: stop() it first"
            )
        settings = {**self._config, **config}
        python = os.environ.get("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.master(self._master_url).appName(name)
        with _environment({"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": python}):
            if SparkContext._gateway is None:
                # Start the JVM without the secret first: other users can see a JVM's arguments.
                self._owns_jvm = True
                SparkContext._ensure_initialized(conf=SparkConf().setAll(list(settings.items())))
            settings["spark.authenticate.secret"] = self._secret
            spark = builder.config(map=dict(settings)).getOrCreate()
        register(spark)
        return spark

    def stop(self) -> None:
        """Stop the session if there is one, and the JVM if it was started for the session."""
        from pyspark import SparkContext

        running = SparkContext._active_spark_context
        if running is not None and running.master == self._master_url:
            running.stop()
        gateway = SparkContext._gateway
        if self._owns_jvm and gateway is not None and SparkContext._active_spark_context is None:
            SparkContext._gateway = SparkContext._jvm = None
            gateway.shutdown()
            jvm = gateway.proc
            jvm.stdin.close()  # the JVM waits for this
            jvm.wait(_JVM_STOP_S)
        self._owns_jvm = False


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set these environment variables for the duration of the context."""
    former = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
