"""How the demos compare topics with the file: they see every difference."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest

import velaray

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COUNT = 200


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The demo's script as a module."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import transactions_under_fire

    return transactions_under_fire


@pytest.fixture
def client(cluster) -> Iterator[velaray.Client]:
    """A client of the cluster."""
    with velaray.Client(cluster.service_url) as client:
        yield client


def publish(client: velaray.Client, outputs: list) -> None:
    for topic in {output.topic for output in outputs}:
        producer = client.create_producer(topic, batching_enabled=True)
        for output in outputs:
            if output.topic == topic:
                producer.send_async(output.value, None)
        producer.close()


def test_the_demo_reports_missing_and_duplicate_results(demo, cluster, client, capsys) -> None:
    every = list(islice(demo.flights(), COUNT))
    outputs = [output for flight in every for output in demo.outputs_of(flight)]
    publish(client, outputs[1:])
    assert not demo.compare(cluster.service_url, every)
    assert figures(capsys, "carriers") == ["200", "199", "1", "0"]
    publish(client, outputs[:1])
    assert demo.compare(cluster.service_url, every)
    assert figures(capsys, "carriers") == ["200", "200", "0", "0"]
    late = next(output for output in outputs if output.topic == demo.DELAYS)
    publish(client, [late])
    assert not demo.compare(cluster.service_url, every)
    assert figures(capsys, "delays")[2:] == ["0", "1"]


@pytest.fixture
def spark_demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The demo of Spark as a module."""
    pytest.importorskip("pyspark", reason="pyspark isn't installed")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import spark_under_fire

    return spark_under_fire


def test_the_spark_demo_reports_missing_duplicate_and_wrong_rows(spark_demo, capsys) -> None:
    every = [
        spark_demo.Flight(datetime(2013, 1, 1, hour, tzinfo=UTC), "N1", carrier, delay)
        for hour, carrier, delay in [
            (5, "UA", 2.0),
            (5, "UA", None),
            (5, "AA", 1.0),
            (6, "UA", 3.0),
        ]
    ]
    first, other, last = found = spark_demo.expected_rows(every)
    assert first == spark_demo.Delays("2013-01-01 05", "UA", 2, 2.0)
    assert spark_demo.compare(every, found[::-1])
    for wrong, missing, surplus in [
        ([first, other], 1, 0),
        ([*found, last], 0, 1),
        ([first._replace(minutes=3.0), other, last], 1, 1),
    ]:
        capsys.readouterr()
        assert not spark_demo.compare(every, wrong)
        told = " ".join(capsys.readouterr().out.split())
        assert f"{missing} missing, {surplus} too many" in told


def figures(capsys: pytest.CaptureFixture[str], topic: str) -> list[str]:
    """The row of a topic in the printed table."""
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if f"│ {topic} " in line)
    return [cell.strip() for cell in row.split("│")[2:6]]
