"""The compatibility of a schema with those of a topic: Pulsar's strategies and checkers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from velaray.schemas.avro import parse_avro
from velaray.schemas.avro_reading import Problem, reading_problems
from velaray.schemas.info import (
    InvalidSchemaError,
    SchemaInfo,
    SchemaType,
    encoding_of,
    split_key_value,
)
from velaray.schemas.native import native_problems, parse_native
from velaray.schemas.validation import AVRO_FORMS, identity, legacy_id


class Strategy(StrEnum):
    """The required compatibility of a new schema with earlier ones, by Pulsar's names."""

    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


_TWINS = {
    Strategy.BACKWARD: Strategy.BACKWARD_TRANSITIVE,
    Strategy.FORWARD: Strategy.FORWARD_TRANSITIVE,
    Strategy.FULL: Strategy.FULL_TRANSITIVE,
}


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for comparing the schemas of a topic.

    ``native_fields`` compares the fields of PROTOBUF_NATIVE messages, where Pulsar compares
    their names only.
    """

    strategy: Strategy = Strategy.FULL
    native_fields: bool = False

    def transitive(self) -> Rules:
        """The same, against every version instead of the latest one."""
        return replace(self, strategy=_TWINS.get(self.strategy, self.strategy))


class Known(NamedTuple):
    """A live version."""

    version: int
    info: SchemaInfo


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """The reason why a schema isn't compatible with a version, and its place in the reader's
    schema.

    ``reads``: the schema can't read data of ``version``; otherwise the reverse.
    """

    version: int
    reads: bool
    path: str
    text: str

    def __str__(self) -> str:
        way = "can't read" if self.reads else "can't be read by"
        return f"it {way} version {self.version}, at {self.path}: {self.text}"


@dataclass(frozen=True, slots=True)
class _Way:
    """``reads``: the schema must read versions; ``is_read``: versions must read it; ``all``: not
    just the latest one."""

    reads: bool
    is_read: bool
    all: bool = False


_PRODUCERS = {
    Strategy.BACKWARD: _Way(reads=True, is_read=False),
    Strategy.FORWARD: _Way(reads=False, is_read=True),
    Strategy.FULL: _Way(reads=True, is_read=True),
    Strategy.BACKWARD_TRANSITIVE: _Way(reads=True, is_read=False, all=True),
    Strategy.FORWARD_TRANSITIVE: _Way(reads=False, is_read=True, all=True),
    Strategy.FULL_TRANSITIVE: _Way(reads=True, is_read=True, all=True),
}
_CONSUMERS = {
    Strategy.BACKWARD: _Way(reads=True, is_read=False),
    Strategy.FORWARD: _Way(reads=True, is_read=False),
    Strategy.FULL: _Way(reads=True, is_read=False),
    Strategy.BACKWARD_TRANSITIVE: _Way(reads=True, is_read=False, all=True),
    Strategy.FORWARD_TRANSITIVE: _Way(reads=True, is_read=False),
    Strategy.FULL_TRANSITIVE: _Way(reads=True, is_read=True, all=True),
}


def producer_problems(
    info: SchemaInfo, live: Sequence[Known], rules: Rules
) -> list[Incompatibility]:
    """The reasons why ``info`` can't become the version after ``live`` (oldest first); empty if it
    can.

    ``info`` must be valid; an invalid version is compatible with nothing.
    """
    if not live or rules.strategy is Strategy.ALWAYS_COMPATIBLE:
        return []
    if rules.strategy is Strategy.ALWAYS_INCOMPATIBLE:
        return [_no_change(live)]
    return _problems(info, live, _PRODUCERS[rules.strategy], rules)


def consumer_problems(
    info: SchemaInfo, live: Sequence[Known], rules: Rules
) -> list[Incompatibility]:
    """The reasons why a consumer with ``info`` may not read a topic with ``live`` versions (at
    least one); empty if it may.

    Under ALWAYS_INCOMPATIBLE it may if its schema is one of them.
    """
    if rules.strategy is Strategy.ALWAYS_COMPATIBLE:
        return []
    if rules.strategy is Strategy.ALWAYS_INCOMPATIBLE:
        same = identity(info)
        return [] if any(identity(known.info) == same for known in live) else [_no_change(live)]
    return _problems(info, live, _CONSUMERS[rules.strategy], rules)


def _no_change(live: Sequence[Known]) -> Incompatibility:
    text = f"{Strategy.ALWAYS_INCOMPATIBLE} accepts no other schema"
    return Incompatibility(live[-1].version, reads=True, path="/", text=text)


def _problems(
    info: SchemaInfo, live: Sequence[Known], way: _Way, rules: Rules
) -> list[Incompatibility]:
    found: list[Incompatibility] = []
    for known in reversed(live if way.all else live[-1:]):
        for reads in (True, False):
            if not (way.reads if reads else way.is_read):
                continue
            reader, writer = (info, known.info) if reads else (known.info, info)
            try:
                problems = list(islice(_compare(reader, writer, rules), 20))
            except InvalidSchemaError as error:  # ``info`` is valid: it's what was stored
                problems = [Problem("/", f"the stored schema of that version is invalid: {error}")]
            found += [Incompatibility(known.version, reads, *each) for each in problems]
    return found


def _compare(reader: SchemaInfo, writer: SchemaInfo, rules: Rules) -> Iterator[Problem]:
    if reader.type is not writer.type:
        yield Problem("/", f"type {reader.type} isn't {writer.type}")
    elif reader.type is SchemaType.KEY_VALUE:
        yield from _compare_key_values(reader, writer, rules)
    elif reader.type is SchemaType.PROTOBUF_NATIVE:
        into, outof = parse_native(reader.data), parse_native(writer.data)
        if into.full_name != outof.full_name:
            yield Problem("/", f"message {into.full_name} isn't {outof.full_name}")
        elif rules.native_fields:
            yield from native_problems(into, outof)
    elif reader.type in AVRO_FORMS:
        yield from _compare_avro_forms(reader, writer)


def _compare_avro_forms(reader: SchemaInfo, writer: SchemaInfo) -> Iterator[Problem]:
    """As in Pulsar, a JSON schema in the older form is compatible with any in the newer one."""
    if reader.type is SchemaType.JSON:
        ids = legacy_id(reader), legacy_id(writer)
        if None in ids and ids != (None, None):
            return
        if None not in ids:
            if ids[0] != ids[1]:
                yield Problem("/", f"id {ids[0]} isn't {ids[1]}")
            return
    yield from reading_problems(parse_avro(reader.data), parse_avro(writer.data))


def _compare_key_values(reader: SchemaInfo, writer: SchemaInfo, rules: Rules) -> Iterator[Problem]:
    if encoding_of(reader) is not encoding_of(writer):
        yield Problem("/", f"encoding {encoding_of(reader)} isn't {encoding_of(writer)}")
    pairs = zip(split_key_value(reader), split_key_value(writer), strict=True)
    for part, (into, outof) in zip(("key", "value"), pairs, strict=True):
        for path, text in _compare(into, outof, rules):
            yield Problem(f"/{part}{path.removesuffix('/')}", text)
