"""What a type checker knows of producers and consumers with schemas, and without."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
from dataclasses import dataclass
from typing import assert_type

import velaray
from velaray import aio
from velaray.schema import AvroSchema, JsonSchema, KeyValueSchema, StringSchema


@dataclass
class Reading:
    sensor: str


def sync(client: velaray.Client) -> None:
    producer = client.create_producer("t", schema=JsonSchema(Reading))
    assert_type(producer, velaray.Producer[Reading])
    producer.send("wrong")
    plain = client.create_producer("t")
    assert_type(plain, velaray.Producer[bytes])
    plain.send(b"right")
    consumer = client.subscribe("t", "s", schema=AvroSchema(Reading))
    assert_type(consumer.receive().value(), Reading)
    assert_type(consumer.receive_many().values(), list[Reading | None])
    assert_type(client.subscribe("t", "s").receive(), velaray.Message[bytes])
    reader = client.create_reader("t", velaray.MessageId.earliest, schema=StringSchema())
    assert_type(reader.read_next().value(), str)
    assert_type(client.create_table_view("t", schema=StringSchema()).get("k"), str | None)
    assert_type(
        KeyValueSchema(StringSchema(), JsonSchema(Reading)), KeyValueSchema[str, Reading]
    )


async def asyncio(client: aio.Client) -> None:
    producer = await client.create_producer("t", schema=JsonSchema(Reading))
    assert_type(producer, aio.Producer[Reading])
    async for message in await client.subscribe("t", "s", schema=JsonSchema(Reading)):
        assert_type(message.value(), Reading)
"""


@pytest.mark.slow
def test_a_type_checker_infers_the_types_of_values(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    options = ["--follow-imports=silent", "--config-file=", "--cache-dir", str(tmp_path / "cache")]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(program)],
        env=os.environ | {"MYPYPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    told = [line for line in run.stdout.splitlines() if line.startswith("program.py:")]
    wrong = PROGRAM.splitlines().index('    producer.send("wrong")') + 1
    assert [line.split(":")[1] for line in told] == [str(wrong)], run.stdout + run.stderr
    assert 'has incompatible type "str"; expected "Reading | None"' in told[0]
