"""Schemas of Pulsar's Java client, as it is: what it does is in java/Schemas.java.

And what Java's Avro says of the edits of schemas, as the brokers ask it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import velaray
from benchmarks.contract import Absent
from tests.official import java_client
from tests.official.support import PATIENCE_MS, LocalServer
from tests.schemas.test_avro_matrix import EDITS, JAVA
from velaray.schema import AutoConsumeSchema, KeyValue

READ_LATER = {
    "json": {"sensor": "roof", "celsius": 3.5},
    "avro": {"sensor": "roof", "celsius": 3.5},
    "inlinePairs": KeyValue("k", {"sensor": "cellar", "celsius": 4.0}),
    "separatePairs": KeyValue("k", {"sensor": "cellar", "celsius": 4.0}),
}


@pytest.fixture(scope="module")
def client_path() -> str:
    try:
        return java_client.class_path()
    except Absent as reason:
        pytest.skip(f"no Java client here: {reason}")


def test_every_scenario_passes_and_messages_of_java_are_read(
    client_path: str, local: LocalServer, topic: str
) -> None:
    java_client.run(client_path, "Schemas", local.service_url, topic, *READ_LATER)
    with velaray.Client(local.service_url) as client:
        for name, wanted in READ_LATER.items():
            start = velaray.MessageId.earliest
            reader = client.create_reader(f"{topic}-{name}", start, schema=AutoConsumeSchema())
            assert reader.read_next(PATIENCE_MS).value() == wanted


def test_javas_avro_agrees_with_the_compatibility_table(client_path: str, tmp_path: Path) -> None:
    lines: list[str] = []

    def ask(name: str, reader: Any, writer: Any, wanted: bool) -> None:
        answer = "error" if name == "a default that is no symbol" else str(wanted).lower()
        lines.extend([name, json.dumps(reader), json.dumps(writer), answer])

    for name, (old, new, backward, forward) in EDITS.items():
        backward, forward = JAVA.get(name, (backward, forward))
        ask(name, new, old, backward)
        ask(name, old, new, forward)
    questions = tmp_path / "questions"
    questions.write_text("\n".join(lines) + "\n", encoding="utf-8")
    java_client.run(client_path, "AvroRules", str(questions))
