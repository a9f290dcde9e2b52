"""How the demo of transactions compares topics with the file: it sees every difference."""

from __future__ import annotations

from collections.abc import Iterator
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


def test_it_sees_what_is_missing_and_what_is_doubled(demo, cluster, client, capsys) -> None:
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


def figures(capsys: pytest.CaptureFixture[str], topic: str) -> list[str]:
    """The row of a topic in the printed table."""
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if f"│ {topic} " in line)
    return [cell.strip() for cell in row.split("│")[2:6]]
