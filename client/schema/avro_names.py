"""Names of Avro records, for fastavro, which compares them although Pulsar's brokers don't."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import Any

from velaray.schemas.avro import NAMED, parse_avro
from velaray.schemas.avro_reading import writers_names


def read_under_any_name(reader: Any, writer: Any) -> Any:
    """Return the reader's schema with the writer's names as aliases, both as JSON values.

    Raises `InvalidSchemaError`.
    """
    into, outof = (parse_avro(json.dumps(each).encode()) for each in (reader, writer))
    return _with_aliases(reader, "", writers_names(into, outof))


def _with_aliases(raw: Any, space: str, names: Mapping[str, Set[str]]) -> Any:
    if isinstance(raw, list):
        return [_with_aliases(each, space, names) for each in raw]
    if not isinstance(raw, Mapping):
        return raw
    found = dict(raw)
    if raw.get("type") in (*NAMED, "error"):
        full = raw["name"]
        if "." not in full:
            space = raw.get("namespace") or space
            full = f"{space}.{full}" if space else full
        space = full.rpartition(".")[0]
        found["aliases"] = sorted({*raw.get("aliases", ()), *names.get(full, ())})
    if "fields" in raw:
        found["fields"] = [
            {**each, "type": _with_aliases(each["type"], space, names)} for each in raw["fields"]
        ]
    for inside in {"type", "items", "values"} & raw.keys():
        found[inside] = _with_aliases(raw[inside], space, names)
    return found
