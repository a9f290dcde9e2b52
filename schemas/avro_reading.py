"""Checks whether data written under one Avro schema can be read under another one.

The rules are those of schema resolution in Avro's specification, except for names, which follow
Java's Avro, as in Pulsar's brokers: names of records don't count, and the last part of the names of
enums and fixed types does. In a reader's union the branch of the same full name reads; without one,
any record branch that can. Recursive types are decided together: every pair of types is assumed to
be readable until a problem is found, which then applies to all pairs that depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from velaray.schemas.avro import NOTHING, AvroField, AvroType

_PROMOTED = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
MOST_PROBLEMS = 20
"""The most problems that are reported."""


class Problem(NamedTuple):
    """A reason why data can't be read, and its place in the reader's schema."""

    path: str
    text: str


class _Pair(NamedTuple):
    """Types by identity, with the reader's first."""

    reader: int
    writer: int


class _Part(NamedTuple):
    step: str
    reader: AvroType
    writer: AvroType

    @property
    def pair(self) -> _Pair:
        return _Pair(id(self.reader), id(self.writer))


@dataclass(slots=True)
class _Found:
    """The result for one pair: its own problems; parts that must all be readable; and, for a
    reader's union, branches of which at least one must be."""

    problems: list[tuple[str, str]] = field(default_factory=list)
    parts: list[_Part] = field(default_factory=list)
    branches: list[_Part] | None = None

    def fails(self, failed: set[_Pair]) -> bool:
        if self.problems or any(part.pair in failed for part in self.parts):
            return True
        return self.branches is not None and all(each.pair in failed for each in self.branches)


def reading_problems(reader: AvroType, writer: AvroType) -> list[Problem]:
    """The reasons why ``reader`` can't read all data of ``writer``; empty if it can."""
    root = _Part("", reader, writer)
    found = _everything(root)
    return list(_told(root, found, _failed(found)))[:MOST_PROBLEMS]


def writers_names(reader: AvroType, writer: AvroType) -> dict[str, set[str]]:
    """For each named type of the reader's, by full name: the writer's types that are read as it.

    Libraries that compare the names of records use these as aliases.
    """
    root = _Part("", reader, writer)
    found = _everything(root)
    failed = _failed(found)
    names: dict[str, set[str]] = {}
    left, seen = [root], set()
    while left:
        part = left.pop()
        if part.pair in seen:
            continue
        seen.add(part.pair)
        if part.reader.name and part.reader.kind == part.writer.kind:
            names.setdefault(part.reader.name, set()).add(part.writer.name)
        known = found[part.pair]
        left += known.parts
        readable = [each for each in known.branches or () if each.pair not in failed]
        alike = [each for each in readable if _last(each.reader) == _last(each.writer)]
        left += (alike or readable)[:1]
    return names


def _everything(root: _Part) -> dict[_Pair, _Found]:
    found: dict[_Pair, _Found] = {}
    left = [root]
    while left:
        part = left.pop()
        if part.pair not in found:
            known = found[part.pair] = _compare(part.reader, part.writer)
            left += [*known.parts, *(known.branches or ())]
    return found


def _failed(found: dict[_Pair, _Found]) -> set[_Pair]:
    """The pairs that can't be read: those with problems, and those that depend on them."""
    dependents: dict[_Pair, list[_Pair]] = {}
    for pair, known in found.items():
        for part in (*known.parts, *(known.branches or ())):
            dependents.setdefault(part.pair, []).append(pair)
    failed: set[_Pair] = set()
    left = list(found)
    while left:
        pair = left.pop()
        if pair not in failed and found[pair].fails(failed):
            failed.add(pair)
            left += dependents.get(pair, ())
    return failed


def _told(root: _Part, found: dict[_Pair, _Found], failed: set[_Pair]) -> Iterator[Problem]:
    left, seen = [(root, "")], set()
    while left:
        part, path = left.pop()
        if part.pair not in failed or part.pair in seen:
            continue
        seen.add(part.pair)
        known = found[part.pair]
        yield from (Problem(path + step or "/", text) for step, text in known.problems)
        if known.branches is not None and known.fails(failed) and not known.problems:
            alike = [each for each in known.branches if str(each.reader) == str(part.writer)]
            if alike:
                left.append((alike[0], path))
            else:
                yield Problem(path or "/", f"no branch of the reader's union reads {part.writer}")
        left += [(each, path + each.step) for each in reversed(known.parts)]


def _compare(reader: AvroType, writer: AvroType) -> _Found:
    if writer.kind == "union":
        parts = [_Part("", reader, branch) for branch in writer.of]
        return _Found(parts=parts)
    if reader.kind == "union":
        return _Found(branches=[_Part("", branch, writer) for branch in _branches(reader, writer)])
    if reader.kind != writer.kind:
        if reader.kind in _PROMOTED.get(writer.kind, ()):
            return _Found()
        return _Found([("", f"{reader} can't read {writer}")])
    if reader.kind != "record" and not _named_alike(reader, writer):
        return _Found([("", f"{reader} can't read {writer}: another name, and no alias")])
    match reader.kind:
        case "record":
            return _compare_records(reader, writer)
        case "enum":
            return _compare_enums(reader, writer)
        case "fixed":
            if reader.size != writer.size:
                return _Found([("", f"{reader}: {reader.size} bytes can't be {writer.size}")])
        case "array" | "map":
            step = "/items" if reader.kind == "array" else "/values"
            return _Found(parts=[_Part(step, reader.of[0], writer.of[0])])
    return _Found()


def _branches(reader: AvroType, writer: AvroType) -> list[AvroType]:
    """The branches of the reader's union that may read ``writer``."""
    if not writer.name:
        return reader.of
    alike = [each for each in reader.of if each.kind == writer.kind]
    same = [each for each in alike if writer.name in (each.name, *each.aliases)]
    return same[:1] or [
        each for each in alike if each.kind == "record" or _named_alike(each, writer)
    ]


def _named_alike(reader: AvroType, writer: AvroType) -> bool:
    return _last(reader) == _last(writer) or writer.name in reader.aliases


def _last(of: AvroType) -> str:
    """A name without its namespace."""
    return of.name.rpartition(".")[2]


def _compare_enums(reader: AvroType, writer: AvroType) -> _Found:
    unknown = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
    if not unknown or reader.default in reader.symbols:
        return _Found()
    return _Found([("", f"{reader} lacks {', '.join(unknown)}, and a default for unknown symbols")])


def _compare_records(reader: AvroType, writer: AvroType) -> _Found:
    found = _Found()
    for each in reader.fields:
        step = f"/{each.name}"
        written = _written(each, writer)
        if written is not None:
            found.parts.append(_Part(step, each.type, written.type))
        elif each.default is NOTHING:
            found.problems.append((step, f"{writer} lacks the field, which has no default"))
    return found


def _written(each: AvroField, writer: AvroType) -> AvroField | None:
    by_name = {known.name: known for known in writer.fields}
    if each.name in by_name:
        return by_name[each.name]
    return next((by_name[alias] for alias in sorted(each.aliases) if alias in by_name), None)
