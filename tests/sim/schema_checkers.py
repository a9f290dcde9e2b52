"""What must hold of schemas, by their numbers S1 to S5, and that what is deleted is forgotten.

They go by the history, and by the journals of the registries and partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.sim.attic import HistoryStore, SimDisk
from tests.sim.contents import contents_of
from tests.sim.history import History
from tests.sim.schemas import ACTIVE, SCHEMAS, TOPIC
from velaray.events.codec import decode
from velaray.events.events_pb2 import EntriesTrimmed, SchemaRegistered, SchemasDeleted
from velaray.events.ids import ActorKey, ActorKind
from velaray.journal.memory import MemoryStore
from velaray.journal.replay import replay
from velaray.schemas import SchemaInfo, SchemaType
from velaray.schemas.compatibility import Known, Rules, Strategy, producer_problems
from velaray.schemas.validation import identity
from velaray.wire.messages import read_metadata
from velaray.wire.schemas import read_version

_IDENTITIES = [identity(info) for info in SCHEMAS]


@dataclass
class SchemaEvidence:
    """The events of each topic's registry, and (version, content) of its retained messages."""

    history: History
    registries: dict[str, list[Any]] = field(default_factory=dict)
    retained: dict[str, list[tuple[int | None, str]]] = field(default_factory=dict)


async def collect(disk: SimDisk, expected: set[str], history: History) -> SchemaEvidence:
    """Collect the evidence from those journals of these actors that are stored."""
    found, store = SchemaEvidence(history), HistoryStore(disk)
    for name in sorted(expected & set(await store.list_journals())):
        key = ActorKey.parse(name)
        topic = str(key.topic_name).removeprefix("persistent://")
        if key.kind is ActorKind.SCHEMA_REGISTRY:
            events = [decode(record.event) async for record in replay(store, name)]
            found.registries[topic] = [
                each for each in events if isinstance(each, SchemaRegistered | SchemasDeleted)
            ]
        elif key.kind is ActorKind.PARTITION and topic == TOPIC:
            found.retained[topic] = await _retained(store, name)
    return found


async def _retained(store: MemoryStore, name: str) -> list[tuple[int | None, str]]:
    stored, trimmed = [], set()
    async for record in replay(store, name):
        event: Any = decode(record.event)
        if isinstance(event, EntriesTrimmed):
            trimmed.update(ledger.ledger_id for ledger in event.ledgers)
        if record.blob is not None and record.position is not None:
            version = read_version(read_metadata(record.blob).schema_version)
            (content,) = contents_of(record.blob)
            stored.append((record.position.ledger_id, version, content))
    return [(version, content) for ledger, version, content in stored if ledger not in trimmed]


def versions_are_dense_and_live_ones_differ(run: SchemaEvidence) -> Iterator[str]:
    """S1."""
    for topic, events in run.registries.items():
        live: set[bytes] = set()
        for number, event in enumerate(events):
            if event.version != number:
                yield f"{topic} has version {event.version} where {number} is due"
            if isinstance(event, SchemasDeleted):
                live.clear()
            elif event.identity in live:
                yield f"version {number} of {topic} is there, and live, already"
            else:
                live.add(event.identity)


def a_schema_has_the_version_that_was_answered(run: SchemaEvidence) -> Iterator[str]:
    """S2. With S1: concurrent registrations of one schema get one version."""
    events = run.registries.get(TOPIC, [])
    for time, _, note in run.history.of("schema registered"):
        version, schema = note["version"], note["schema"]
        known = events[version] if version is not None and version < len(events) else None
        if getattr(known, "identity", None) != _IDENTITIES[schema]:
            yield f"at {time} schema {schema} was told to be version {version}: {known}"


def accepted_schemas_were_compared_with_their_predecessor(run: SchemaEvidence) -> Iterator[str]:
    """S3."""
    for topic, events in run.registries.items():
        live: list[Known] = []
        for event in events:
            if isinstance(event, SchemasDeleted):
                live = []
                continue
            info = SchemaInfo(SchemaType(event.type), event.name, event.data)
            told = event.predecessor if event.HasField("predecessor") else None
            last = live[-1].version if live else None
            if told != last:
                yield f"version {event.version} of {topic} came after {last}, not {told}"
            problems = producer_problems(info, live, Rules(Strategy(event.strategy)))
            if problems:
                yield f"version {event.version} of {topic}: {problems[0]}"
            live.append(Known(event.version, info))


def stored_messages_can_be_decoded(run: SchemaEvidence) -> Iterator[str]:
    """S4: the version that a message bears is the schema under which it was published."""
    events = run.registries.get(TOPIC, [])
    for version, content in run.retained.get(TOPIC, []):
        schema = int(content.split("/")[0])
        known = events[version] if version is not None and version < len(events) else None
        if getattr(known, "identity", None) != _IDENTITIES[schema]:
            yield f"{content} bears version {version}, which is {known}"


def consumers_write_nothing_where_a_topic_is_active(run: SchemaEvidence) -> Iterator[str]:
    """S5."""
    if run.history.of("schema-less topic is active"):
        for event in run.registries.get(ACTIVE, []):
            yield f"{ACTIVE} got version {event.version} although something was stored"
    for time, _, _ in run.history.of("schema consumer came to an active topic"):
        yield f"at {time} a consumer with a schema came to {ACTIVE}"


def deleted_schemas_do_not_count_as_live(run: SchemaEvidence) -> Iterator[str]:
    """A registration that begins after a deletion was answered gets a newer version."""
    deletions = [(time, note["version"]) for time, _, note in run.history.of("schema deleted")]
    for time, _, note in run.history.of("schema registered"):
        newest = max((number for at, number in deletions if at < note["begun"]), default=-1)
        if note["version"] is not None and note["version"] < newest:
            yield f"at {time} {note['who']} got {note['version']}, deleted by {newest} before"


CHECKERS: tuple[Callable[[SchemaEvidence], Iterator[str]], ...] = (
    versions_are_dense_and_live_ones_differ,
    a_schema_has_the_version_that_was_answered,
    accepted_schemas_were_compared_with_their_predecessor,
    stored_messages_can_be_decoded,
    consumers_write_nothing_where_a_topic_is_active,
    deleted_schemas_do_not_count_as_live,
)


def judge_schemas(run: SchemaEvidence) -> list[str]:
    """Everything that is wrong; a few examples of each kind."""
    return [
        f"{checker.__name__}: {fault}" for checker in CHECKERS for fault in list(checker(run))[:3]
    ]
