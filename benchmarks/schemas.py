"""What schemas cost: encoding and decoding against doing it by hand, and publishing with one.

CPU time, as the machine may be busy. By hand is what a user would write without schemas: `json`
or fastavro, and the class or a dict. Publishing is both ends: client and service in this process.
"""

from __future__ import annotations

import io
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import fastavro

import velaray
from benchmarks.model import Result, Samples, Verdict
from benchmarks.options import Options
from tests.support.local_cluster import LocalCluster
from velaray.schema import AvroSchema, JsonSchema, Schema

BY_HAND = "by hand"
CALLS = 5_000
REPEATS = 9
MESSAGES = 20_000
PUBLISHINGS = 10
BATCH = 1_000
VALUES_LIMIT = 1.2
PUBLISH_LIMIT = 1.02


@dataclass
class Flight:
    """A record like those of the examples."""

    tail: str
    origin: str
    dest: str
    distance: int
    delay: float
    cancelled: bool
    note: str | None = None
    seats: int = 0


class FlightDict(TypedDict):
    """The same as a dict."""

    tail: str
    origin: str
    dest: str
    distance: int
    delay: float
    cancelled: bool
    note: str | None
    seats: int


FIELDS: FlightDict = {
    "tail": "N14228",
    "origin": "EWR",
    "dest": "IAH",
    "distance": 1400,
    "delay": 2.5,
    "cancelled": False,
    "note": None,
    "seats": 149,
}

Call = Callable[[], Any]


class Passing(Schema[bytes]):
    """Has a version in the registry, and leaves bytes as they are: what is left is its own cost."""

    info = AvroSchema(Flight).info
    encode = staticmethod(bytes)  # type: ignore[assignment]


def _json_by_hand(value: Flight) -> bytes:
    return json.dumps(vars(value)).encode()


PUBLISHED: dict[str, tuple[Callable[[Any], bytes], Schema[Any], Any]] = {
    "publish bytes, batched": (bytes, Passing(), b"x" * 100),
    "publish bytes, send_many": (bytes, Passing(), b"x" * 100),
    "publish JSON, batched": (_json_by_hand, JsonSchema(Flight), Flight(**FIELDS)),
    "publish JSON, send_many": (_json_by_hand, JsonSchema(Flight), Flight(**FIELDS)),
}
"""By hand, by which schema, and what."""


def run(options: Options) -> Result:
    """Every round measures each thing by hand and with a schema, in turns."""
    samples = Samples()
    for _ in range(options.rounds):
        for case, (by_hand, subject, by_schema) in _values().items():
            base, found = in_turns(by_hand, by_schema)
            samples.add(case, BY_HAND, "CPU per message", "µs", base * 1e6)
            samples.add(case, subject, "CPU per message", "µs", found * 1e6)
    with tempfile.TemporaryDirectory() as folder, LocalCluster(Path(folder)) as cluster:
        for _ in range(options.rounds):
            for case, (made, schema, value) in PUBLISHED.items():
                base, found = _published(cluster, case, made, schema, value)
                samples.add(case, BY_HAND, "CPU per message", "µs", base * 1e6)
                samples.add(case, type(schema).__name__, "CPU per message", "µs", found * 1e6)
    return _judged(samples)


def _judged(samples: Samples) -> Result:
    result = Result(
        name="schemas",
        settings={
            "record": "8 fields: 3 texts, an optional one, 2 integers, a float, a boolean",
            "values": f"one thread, best of {REPEATS} times {CALLS:,} calls, in turns",
            BY_HAND: "json and fastavro's schemaless calls; classes by keywords",
            "publish": f"best of {PUBLISHINGS} times {MESSAGES:,} messages; client and service in"
            " this process, CPU time of both",
            "Passing": "a schema with a version that leaves bytes as they are",
        },
        baseline=BY_HAND,
        rows=samples.rows(),
    )
    for row in result.rows:
        ratio = result.ratio(row)
        if ratio is not None:
            limit = PUBLISH_LIMIT if row.case.startswith("publish") else VALUES_LIMIT
            goal = f"{row.case}, {row.subject} over {BY_HAND}"
            result.verdicts.append(Verdict(goal, ratio, limit))
    return result


def _values() -> dict[str, tuple[Call, str, Call]]:
    value, fields = Flight(**FIELDS), FIELDS
    in_json, in_avro = JsonSchema(Flight), AvroSchema(Flight)
    dict_json, dict_avro = JsonSchema(FlightDict), AvroSchema(FlightDict)
    parsed = fastavro.parse_schema(json.loads(in_avro.info.data))
    text, data = in_json.encode(value), in_avro.encode(value)

    def written(plain: Any) -> bytes:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, parsed, plain)
        return buffer.getvalue()

    def read() -> Any:
        return fastavro.schemaless_reader(io.BytesIO(data), parsed, None)

    return {
        "encode JSON, dataclass": (
            lambda: json.dumps(vars(value)).encode(),
            "JsonSchema",
            lambda: in_json.encode(value),
        ),
        "encode JSON, dict": (
            lambda: json.dumps(fields).encode(),
            "JsonSchema",
            lambda: dict_json.encode(fields),
        ),
        "decode JSON, dataclass": (
            lambda: Flight(**json.loads(text)),
            "JsonSchema",
            lambda: in_json.decode(text),
        ),
        "decode JSON, dict": (
            lambda: json.loads(text),
            "JsonSchema",
            lambda: dict_json.decode(text),
        ),
        "encode Avro, dataclass": (
            lambda: written(vars(value)),
            "AvroSchema",
            lambda: in_avro.encode(value),
        ),
        "encode Avro, dict": (
            lambda: written(fields),
            "AvroSchema",
            lambda: dict_avro.encode(fields),
        ),
        "decode Avro, dataclass": (
            lambda: Flight(**read()),
            "AvroSchema",
            lambda: in_avro.decode(data),
        ),
        "decode Avro, dict": (read, "AvroSchema", lambda: dict_avro.decode(data)),
    }


def in_turns(first: Call, second: Call) -> tuple[float, float]:
    """Seconds of CPU per call of each, the best of several tries."""
    best = [float("inf"), float("inf")]
    for _ in range(REPEATS):
        for place, call in enumerate((first, second)):
            before = time.thread_time()
            for _ in range(CALLS):
                call()
            best[place] = min(best[place], (time.thread_time() - before) / CALLS)
    return best[0], best[1]


def _published(
    cluster: LocalCluster, case: str, made: Callable[[Any], bytes], schema: Schema[Any], value: Any
) -> tuple[float, float]:
    """Seconds of CPU per message, of client and service: by hand, and by the schema."""
    topic, many = f"public/default/{case.replace(' ', '-').replace(',', '')}", "many" in case
    with velaray.Client(cluster.service_url) as client:
        producers = [
            client.create_producer(
                f"{topic}-{number}",
                schema=each,
                batching_enabled=True,
                block_if_queue_full=True,
                max_pending_messages=10 * BATCH,
            )
            for number, each in enumerate((None, schema))
        ]
        best = [float("inf"), float("inf")]
        for turn in range(2 * PUBLISHINGS):
            place = turn % 2
            make = made if place == 0 else None
            used = _sent(producers[place], make, value, many)
            best[place] = min(best[place], used / MESSAGES)
    return best[0], best[1]


def _sent(
    producer: velaray.Producer[Any], make: Callable[[Any], bytes] | None, value: Any, many: bool
) -> float:
    before = time.process_time()
    if many:
        for _ in range(MESSAGES // BATCH):
            values = [value] * BATCH
            producer.send_many(values if make is None else list(map(make, values)))
    elif make is None:
        for _ in range(MESSAGES):
            producer.send_async(value, _nothing)
    else:
        for _ in range(MESSAGES):
            producer.send_async(make(value), _nothing)
    producer.flush()
    return time.process_time() - before


def _nothing(*_: object) -> None:
    pass
