"""The schema registry of one topic: its versions, from 0 on, without a gap.

A schema that equals a live version is that version, and nothing is written. Another schema is
compared with the live versions under the present strategy, and becomes the next version. The
comparison and the number are one decision of one journal, so concurrent registrations are compared
with their true predecessors. A deletion is a version, too: it and all versions before it are no
longer live. New schemas aren't compared with them, and a deleted schema that is registered again
gets a new number. Their content stays as long as the topic, and no number is reused, because
messages that refer to it may be kept as long.

Commands: `Register`, `Attach`, `Delete`. Events: SchemaRegistered, SchemasDeleted (and
LedgerOpened, which changes nothing here).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack
from google.protobuf.message import Message

from velaray.actors.machine import Decision, Reason, refuse, require
from velaray.events.events_pb2 import LedgerOpened, SchemaRegistered, SchemasDeleted
from velaray.events.segments import Segment, StoredSegment
from velaray.schemas import InvalidSchemaError, SchemaInfo, SchemaType
from velaray.schemas.compatibility import (
    Incompatibility,
    Known,
    Rules,
    consumer_problems,
    producer_problems,
)
from velaray.schemas.validation import UNSTORED, identity, validate

_VERSION = "version/"
_DISABLED = "Schema not found and schema auto updating is disabled."
_ACTIVE = "Failed to add schema to an active topic with empty(BYTES) schema."


@dataclass(frozen=True, slots=True)
class Register:
    """Register ``info`` for a producer. Reply: `Registered`.

    ``auto_update`` False accepts live versions only. ``legacy_json``: see `validate`. Refused
    INVALID_SCHEMA, INCOMPATIBLE_SCHEMA.
    """

    info: SchemaInfo
    rules: Rules = field(default_factory=Rules)
    auto_update: bool = True
    legacy_json: bool = False
    role: str = ""


@dataclass(frozen=True, slots=True)
class Registered:
    """The schema's version; ``new`` if the command created it."""

    version: int
    new: bool


@dataclass(frozen=True, slots=True)
class Attach:
    """Check the schema ``info`` of a consumer. Reply: `Attached`.

    If there is no live version it is registered, unless the topic is ``active``. Refused as
    `Register`.
    """

    info: SchemaInfo
    active: bool
    rules: Rules = field(default_factory=Rules)
    auto_update: bool = True
    legacy_json: bool = False
    role: str = ""


@dataclass(frozen=True, slots=True)
class Attached:
    """The consumer may read; ``version`` is that of its schema, if it is live."""

    version: int | None
    new: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete every version up to ``through``. Reply: `Deleted`, also for a repetition.

    Refused NOT_FOUND if there never was such a version, CONFLICT if there are newer live ones.
    ``forced`` is recorded and changes nothing here.
    """

    through: int
    forced: bool = False
    role: str = ""


@dataclass(frozen=True, slots=True)
class Deleted:
    """The version number of the deletion."""

    version: int


@dataclass(frozen=True, slots=True)
class Version:
    """One version; ``info`` is None for a deletion. ``predecessor`` is the latest live version at
    the time of its registration."""

    number: int
    info: SchemaInfo | None
    at_ms: int
    role: str = ""
    identity: bytes = b""
    strategy: str = ""
    predecessor: int | None = None
    forced: bool = False


@dataclass(slots=True)
class RegistryState:
    """All versions by number; those from ``live_from`` on are live."""

    versions: list[Version] = field(default_factory=list)
    live_from: int = 0
    # The live ones by identity: a function of the list.
    live: dict[bytes, int] = field(default_factory=dict, compare=False)
    # The places of versions in a checkpoint; versions never change.
    stored: dict[str, StoredSegment] = field(default_factory=dict, compare=False)

    def known(self, *, gone: bool = False) -> list[Known]:
        """The live versions, oldest first; ``gone``: deleted ones as well."""
        found = self.versions[0 if gone else self.live_from :]
        return [Known(each.number, each.info) for each in found if each.info is not None]

    @property
    def latest(self) -> Version | None:
        """The latest live version."""
        return self.versions[-1] if self.live_from < len(self.versions) else None

    def find(self, version: int) -> Version | None:
        """Any version with a schema, also a deleted one: published messages are decoded with it."""
        if not 0 <= version < len(self.versions):
            return None
        found = self.versions[version]
        return None if found.info is None else found


def refused(rules: Rules, problems: list[Incompatibility]) -> str:
    """The reason why a schema isn't compatible, for people."""
    told = "; ".join(map(str, problems))
    return f"Incompatible schema under {rules.strategy}: {told}"


def _identify(command: Register | Attach) -> bytes:
    """Its identity. Raises `InvalidSchemaError`."""
    if command.info.type in UNSTORED:
        raise InvalidSchemaError(f"nothing is stored for the type {command.info.type}")
    validate(command.info, legacy_json=command.legacy_json)
    return identity(command.info)


def _register(
    state: RegistryState, command: Register | Attach, digest: bytes, now_ms: int
) -> Decision:
    known = state.live.get(digest)
    if known is not None:
        return Decision(reply=Registered(known, new=False))
    if not command.auto_update:
        return refuse(Reason.INCOMPATIBLE_SCHEMA, _DISABLED)
    problems = producer_problems(command.info, state.known(), command.rules)
    if problems:
        return refuse(Reason.INCOMPATIBLE_SCHEMA, refused(command.rules, problems))
    info, latest = command.info, state.latest
    event = SchemaRegistered(
        version=len(state.versions),
        type=info.type,
        name=info.name,
        data=info.data,
        properties=info.properties,
        identity=digest,
        strategy=command.rules.strategy,
        predecessor=None if latest is None else latest.number,
        role=command.role,
        at_ms=now_ms,
    )
    return Decision((event,), Registered(event.version, new=True))


def _attach(state: RegistryState, command: Attach, digest: bytes, now_ms: int) -> Decision:
    known = state.known()
    if known:
        problems = consumer_problems(command.info, known, command.rules)
        if problems:
            return refuse(Reason.INCOMPATIBLE_SCHEMA, refused(command.rules, problems))
        return Decision(reply=Attached(state.live.get(digest)))
    if command.active:
        return refuse(Reason.INCOMPATIBLE_SCHEMA, _ACTIVE)
    decision = _register(state, command, digest, now_ms)
    if isinstance(decision.reply, Registered):
        return Decision(decision.events, Attached(decision.reply.version, new=True))
    return decision


def _delete(state: RegistryState, command: Delete, now_ms: int) -> Decision:
    if not 0 <= command.through < len(state.versions):
        return refuse(Reason.NOT_FOUND, f"there is no version {command.through}")
    if command.through < state.live_from:
        return Decision(reply=Deleted(state.live_from - 1))
    latest = state.versions[-1].number
    if latest > command.through:
        return refuse(Reason.CONFLICT, f"version {latest} was registered meanwhile: compare again")
    event = SchemasDeleted(
        version=len(state.versions), forced=command.forced, role=command.role, at_ms=now_ms
    )
    return Decision((event,), Deleted(event.version))


class SchemaRegistryMachine:
    """The machine of one topic's schemas."""

    def initial(self) -> RegistryState:
        """No version yet."""
        return RegistryState()

    def decide(self, state: RegistryState, command: Any, now_ms: int) -> Decision:
        """The decision on ``command``. Raises TypeError for a command of another machine."""
        try:
            match command:
                case Register():
                    return _register(state, command, _identify(command), now_ms)
                case Attach():
                    return _attach(state, command, _identify(command), now_ms)
                case Delete():
                    return _delete(state, command, now_ms)
        except InvalidSchemaError as error:
            return refuse(Reason.INVALID_SCHEMA, f"Invalid schema definition data: {error}")
        raise TypeError(f"a schema registry doesn't handle {type(command).__name__}")

    def evolve(self, state: RegistryState, event: Message) -> None:
        """Apply ``event``. Raises TypeError for an event of another machine."""
        match event:
            case SchemaRegistered():
                _add(state, _version(event))
            case SchemasDeleted(version=version, at_ms=at_ms):
                _add(state, Version(version, None, at_ms, event.role, forced=event.forced))
            case LedgerOpened():
                pass
            case _:
                raise TypeError(f"a schema registry doesn't handle {type(event).__name__}")

    def check(self, state: RegistryState) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        predecessor: int | None = None
        live: dict[bytes, int] = {}
        for number, each in enumerate(state.versions):
            name = str(number)
            require(each.number == number, "versions are dense and increasing", name)
            if each.info is None:
                predecessor, live = None, {}
                continue
            require(each.predecessor == predecessor, "what it was checked against came last", name)
            require(each.identity not in live, "no two live versions are equal", name)
            predecessor = number
            live[each.identity] = number
        require(state.live == live, "live is what came after the last deletion")
        deleted = [each.number for each in state.versions if each.info is None]
        require(state.live_from == (deleted or [-1])[-1] + 1, "live_from follows the last deletion")

    def snapshot(self, state: RegistryState) -> Mapping[str, Segment]:
        """Segments: ``versions`` says how many there are, ``version/<number>`` has each."""
        segments: dict[str, Segment] = {"versions": json.dumps(len(state.versions)).encode()}
        for each in state.versions:
            name = f"{_VERSION}{each.number}"
            segments[name] = state.stored.get(name) or _pack(each)
        return segments

    def restore(self, segments: Mapping[str, bytes]) -> RegistryState:
        """The state whose snapshot is ``segments``."""
        state = RegistryState()
        for number in range(json.loads(segments["versions"])):
            _add(state, _unpack(segments[f"{_VERSION}{number}"]))
        return state

    def on_checkpoint(self, state: RegistryState, stored: Mapping[str, StoredSegment]) -> None:
        """Record the places of versions in a checkpoint: they needn't be written again."""
        kept = {name: place for name, place in stored.items() if name.startswith(_VERSION)}
        state.stored.update(kept)

    def needs_checkpoint(self, state: RegistryState) -> bool:
        """False: schemas are few and small."""
        return False


def _add(state: RegistryState, version: Version) -> None:
    state.versions.append(version)
    if version.info is None:
        state.live_from = version.number + 1
        state.live.clear()
    else:
        state.live[version.identity] = version.number


def _version(event: SchemaRegistered) -> Version:
    return Version(
        event.version,
        SchemaInfo(SchemaType(event.type), event.name, event.data, dict(event.properties)),
        event.at_ms,
        event.role,
        event.identity,
        event.strategy,
        event.predecessor if event.HasField("predecessor") else None,
    )


def _pack(each: Version) -> bytes:
    info = each.info
    told = (
        None if info is None else [info.type, info.name, info.data, sorted(info.properties.items())]
    )
    found: bytes = msgpack.packb(
        [
            each.number,
            told,
            each.at_ms,
            each.role,
            each.identity,
            each.strategy,
            each.predecessor,
            each.forced,
        ]
    )
    return found


def _unpack(raw: bytes) -> Version:
    number, told, *rest = msgpack.unpackb(raw)
    if told is None:
        return Version(number, None, *rest)
    type_, name, data, properties = told
    return Version(number, SchemaInfo(SchemaType(type_), name, data, dict(properties)), *rest)
