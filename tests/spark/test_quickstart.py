"""The programs of docs/quickstart/spark.md run as they are printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import velaray
from tests.support.local_cluster import LocalCluster
from tests.support.samples import DOCUMENTED_URL, python_of

pytestmark = pytest.mark.slow


def test_the_examples_of_the_page_run(spark: Any, tmp_path: Path) -> None:
    # Spark's JVM resolves relative paths, and it began in another directory.
    checkpoint = f'checkpointLocation="{tmp_path / "checkpoint"}"'
    examples = [
        example.replace('checkpointLocation="checkpoint"', checkpoint)
        for example in python_of("docs/quickstart/spark.md")
    ]
    assert len(examples) == 3 and checkpoint in examples[1]
    printed: list[str] = []
    names: dict[str, Any] = {"print": lambda value: printed.append(str(value))}
    with LocalCluster(tmp_path / "data") as cluster:
        for example in examples:
            exec(example.replace(DOCUMENTED_URL, cluster.service_url), names)
        with (
            velaray.Client(cluster.service_url) as client,
            client.create_reader("late", velaray.MessageId.earliest) as reader,
        ):
            message = reader.read_next(10_000)
            assert (message.partition_key(), message.data()) == ("DL", b"40")
    assert printed == ["[('DL', 40), ('UA', 15)]"]
