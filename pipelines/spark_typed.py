"""The type of column ``value`` of Spark's sources, from their options."""

from __future__ import annotations

from collections.abc import Mapping

from velaray.pipelines.rows import columns_named
from velaray.pipelines.spark_batch import BATCH_OPTIONS
from velaray.pipelines.spark_options import Options
from velaray.pipelines.spark_reading import Origin, topics_named
from velaray.pipelines.spark_source import STREAM_OPTIONS
from velaray.pipelines.typed_values import TypedValue, typed_by_files, typed_by_service

_OPTIONS = BATCH_OPTIONS | STREAM_OPTIONS


def typed_value(options: Mapping[str, str]) -> TypedValue | None:
    """Return the newest schema of the query's topics as of now; None if its values are bytes.

    Raises `InvalidConfiguration`, and the service's errors.
    """
    # Ignore unknown options here: the source that reads them refuses them.
    known = Options(options, _OPTIONS | options.keys(), "the velaray source")
    lenient = known.choice("on_undecodable", "fail", "null") == "null"
    if known.choice("value_schema", "bytes", "typed") == "bytes":
        return None
    if "value" not in columns_named(known.text("columns")):
        return None
    data_dir = known.text("data_dir")
    if data_dir is not None:
        keys = known.text("encryption_keys")
        return typed_by_files(data_dir, topics_named(known)[0], lenient, keys)
    origin = Origin.of(known)
    return typed_by_service(origin.service, origin.topics, lenient)
