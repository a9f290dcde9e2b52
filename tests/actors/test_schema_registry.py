"""The schema registry: versions, what they are compared with, deletions."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from velaray.actors.machine import InvariantViolation, Reason
from velaray.actors.schema_registry.machine import (
    Attach,
    Attached,
    Delete,
    Deleted,
    Register,
    Registered,
    SchemaRegistryMachine,
)
from velaray.actors.testing import drive, given
from velaray.events.events_pb2 import LedgerOpened, SchemaRegistered, SchemasDeleted
from velaray.schemas import SchemaInfo, SchemaType
from velaray.schemas.compatibility import Rules, Strategy
from velaray.schemas.validation import identity

MACHINE = SchemaRegistryMachine()
ANY = Rules(Strategy.ALWAYS_COMPATIBLE)
BACKWARD = Rules(Strategy.BACKWARD)
ALL_BACK = Rules(Strategy.BACKWARD_TRANSITIVE)


def avro(*fields: str) -> SchemaInfo:
    """A record; a field whose name ends in ``?`` has a default."""
    named = [
        {"name": field.rstrip("?"), "type": "int"} | ({"default": 1} if "?" in field else {})
        for field in fields
    ]
    data = json.dumps({"type": "record", "name": "R", "fields": named})
    return SchemaInfo(SchemaType.AVRO, "R", data.encode(), {"made by": "a test"})


TEXT = SchemaInfo(SchemaType.STRING, "s")
ONE, TWO, THREE = avro("f1"), avro("f1", "f2?"), avro("f1", "f2")


def opened():
    return given(MACHINE, LedgerOpened(ledger_id=1, epoch=1))


def test_the_first_schema_is_version_0() -> None:
    first = SchemaRegistered(
        version=0,
        type="AVRO",
        name="R",
        data=ONE.data,
        properties={"made by": "a test"},
        identity=identity(ONE),
        strategy="FULL",
        role="me",
        at_ms=7,
    )
    opened().when(Register(ONE, role="me"), now_ms=7).then(
        events=[first], reply=Registered(0, True)
    )


def test_versions_are_dense_and_record_what_they_were_compared_with() -> None:
    story = opened().when(Register(ONE)).when(Register(TWO)).then(reply=Registered(1, True))
    assert story.last.events[0].predecessor == 0
    story.when(Register(THREE)).then(reply=Registered(2, True))
    assert [each.predecessor for each in story.state.versions] == [None, 0, 1]


def test_a_schema_equal_to_any_live_version_gets_that_version() -> None:
    reordered = replace(ONE, data=json.dumps(json.loads(ONE.data), indent=4).encode(), name="x")
    (
        opened()
        .when(Register(ONE))
        .when(Register(TWO))
        .when(Register(reordered))
        .then(events=[], reply=Registered(0, False))
        .when(Register(TWO, Rules(Strategy.ALWAYS_INCOMPATIBLE)))
        .then(events=[], reply=Registered(1, False))
    )


def test_an_incompatible_schema_is_refused_and_writes_nothing() -> None:
    (
        opened()
        .when(Register(ONE))
        .when(Register(THREE))
        .then_refused(Reason.INCOMPATIBLE_SCHEMA, "can't read version 0, at /f2")
        .when(Register(TEXT))
        .then_refused(Reason.INCOMPATIBLE_SCHEMA, "type STRING isn't AVRO")
        .when(Register(TEXT, ANY))
        .then(reply=Registered(1, True))
    )


def test_transitive_strategies_check_every_live_version() -> None:
    story = opened().when(Register(ONE)).when(Register(TWO))
    story.when(Register(THREE, ALL_BACK)).then_refused(
        Reason.INCOMPATIBLE_SCHEMA, "under BACKWARD_TRANSITIVE: it can't read version 0"
    )
    story.when(Register(THREE, BACKWARD)).then(reply=Registered(2, True))


def test_without_auto_update_only_live_versions_are_accepted() -> None:
    (
        opened()
        .when(Register(ONE, auto_update=False))
        .then_refused(Reason.INCOMPATIBLE_SCHEMA, "auto updating is disabled")
        .when(Register(ONE))
        .when(Register(ONE, auto_update=False))
        .then(reply=Registered(0, False))
        .when(Register(TWO, auto_update=False))
        .then_refused(Reason.INCOMPATIBLE_SCHEMA, "auto updating is disabled")
    )


@pytest.mark.parametrize(
    "info",
    [
        replace(ONE, data=b"{"),
        replace(TEXT, data=b"text"),
        SchemaInfo(SchemaType.AUTO_CONSUME),
        SchemaInfo(SchemaType.BYTES),
        SchemaInfo(SchemaType.EXTERNAL),
    ],
    ids=lambda info: str(info.type),
)
def test_an_invalid_schema_is_refused(info: SchemaInfo) -> None:
    for command in (Register(info), Attach(info, active=False)):
        opened().when(command).then_refused(Reason.INVALID_SCHEMA)


# -- consumers ---------------------------------------------------------------------


def test_a_consumer_of_an_idle_topic_without_schema_registers_its_own() -> None:
    opened().when(Attach(ONE, active=False)).then(reply=Attached(0, new=True)).when(
        Attach(ONE, active=True)
    ).then(events=[], reply=Attached(0))


def test_a_consumer_registers_no_schema_on_a_used_topic() -> None:
    story = opened().when(Attach(ONE, active=True))
    story.then_refused(Reason.INCOMPATIBLE_SCHEMA, "active topic with empty(BYTES) schema")
    story.when(Register(ONE))
    for active in (True, False):
        story.when(Attach(TWO, active)).then(events=[], reply=Attached(None))
        story.when(Attach(THREE, active)).then_refused(Reason.INCOMPATIBLE_SCHEMA, "/f2")


def test_a_consumer_may_not_register_where_producers_may_not() -> None:
    story = opened().when(Attach(ONE, active=False, auto_update=False))
    story.then_refused(Reason.INCOMPATIBLE_SCHEMA, "auto updating is disabled")


# -- deletions ---------------------------------------------------------------------


def test_a_deletion_uses_a_version_number_and_hides_earlier_versions() -> None:
    story = opened().when(Register(ONE)).when(Register(TWO))
    story.when(Delete(1, forced=True, role="me"), now_ms=9).then(
        events=[SchemasDeleted(version=2, forced=True, role="me", at_ms=9)], reply=Deleted(2)
    )
    assert story.state.latest is None
    assert story.state.known() == []
    # Nothing is compared with what is deleted, and what was deleted gets a new number.
    story.when(Register(TEXT)).then(reply=Registered(3, True))
    story.when(Register(ONE, ANY)).then(reply=Registered(4, True))
    assert [each.version for each in story.state.known()] == [3, 4]


def test_a_deleted_version_still_decodes_messages_published_under_it() -> None:
    story = opened().when(Register(ONE)).when(Delete(0, forced=True)).when(Register(TEXT))
    assert story.state.find(0).info == ONE
    assert story.state.find(1) is None  # the deletion itself
    assert story.state.find(2).info == TEXT
    assert story.state.find(3) is None
    assert story.state.find(-1) is None


def test_a_repeated_deletion_changes_nothing() -> None:
    story = opened().when(Register(ONE)).when(Delete(0)).when(Delete(0))
    story.then(events=[], reply=Deleted(1))
    story.when(Register(ONE)).when(Delete(0)).then(events=[], reply=Deleted(1))


def test_a_deletion_spares_versions_added_meanwhile() -> None:
    story = opened().when(Delete(0)).then_refused(Reason.NOT_FOUND, "no version 0")
    story.when(Register(ONE)).when(Register(TWO))
    story.when(Delete(0)).then_refused(
        Reason.CONFLICT, "version 1 was registered meanwhile: compare again"
    )


def test_a_consumer_may_register_again_after_a_deletion() -> None:
    story = opened().when(Register(ONE)).when(Delete(0))
    story.when(Attach(TEXT, active=True)).then_refused(Reason.INCOMPATIBLE_SCHEMA, "active topic")
    story.when(Attach(TEXT, active=False)).then(reply=Attached(2, new=True))


# -- any history -------------------------------------------------------------------


def test_random_histories_keep_the_invariants() -> None:
    random = Random(7)
    schemas = [ONE, TWO, THREE, TEXT, avro("f1", "f3?"), avro("f1", "f2?", "f3?")]
    rules = [Rules(each) for each in Strategy]
    for _ in range(20):
        commands = []
        for _ in range(30):
            info, rule = random.choice(schemas), random.choice(rules)
            commands.append(
                random.choice(
                    [
                        Register(info, rule, auto_update=random.random() < 0.8),
                        Register(info, ANY),
                        Attach(info, random.random() < 0.5, rule),
                        Delete(random.randrange(-1, 12)),
                    ]
                )
            )
        drive(MACHINE, commands)


@pytest.mark.parametrize(
    ("versions", "invariant"),
    [
        (lambda all_: [all_[1]], "dense and increasing"),
        (lambda all_: [all_[0], replace(all_[1], identity=all_[0].identity)], "no two live"),
        (lambda all_: [all_[0], replace(all_[1], predecessor=None)], "came last"),
    ],
)
def test_a_broken_invariant_is_named(versions, invariant: str) -> None:
    state = opened().when(Register(ONE)).when(Register(TWO)).state
    state.versions = versions(state.versions)
    with pytest.raises(InvariantViolation, match=invariant):
        MACHINE.check(state)


def test_an_unusable_version_does_not_block_other_schemas() -> None:
    """A schema of a release that accepts more, for example."""
    broken = SchemaRegistered(
        version=1, type="AVRO", data=b"{", identity=b"x" * 32, strategy="FULL", predecessor=0
    )
    first = opened().when(Register(ONE)).last.events[0]
    story = given(MACHINE, LedgerOpened(ledger_id=1, epoch=1), first, broken)
    story.when(Register(ONE)).then(reply=Registered(0, False))
    story.when(Register(TWO)).then_refused(Reason.INCOMPATIBLE_SCHEMA, "version 1, at")
    found = story.state.find(1)
    assert found is not None and found.info is not None and found.info.data == b"{"
    story.when(Register(TWO, ANY)).then(reply=Registered(2, True))
    story.when(Register(replace(TWO, data=avro("f1", "f2?", "f3?").data))).then(
        reply=Registered(3, True)
    )
