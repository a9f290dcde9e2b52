"""Deletion events: what they say, and that one which contradicts itself is noticed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from velaray.broker.garbage_collection.deletion_events import (
    SCHEMA,
    Component,
    MalformedEvent,
    MisaddressedEvent,
    addressee,
    component_of,
    decode_event,
    encode_event,
    event_of,
)
from velaray.events.ids import ActorKey, TopicName

TOPIC = TopicName.parse("persistent://shop/eu/orders")
PARTITION = ActorKey.of_partition(TOPIC.of_partition(2), 5)
KEYS = {
    Component.TOPIC: PARTITION,
    Component.SUBSCRIPTION: PARTITION.of_subscription("bills / 2", 3),
    Component.SCHEMAS: ActorKey.of_schema_registry(TOPIC, 5),
    Component.COMPACTED: PARTITION.of_compacted(4),
    Component.COORDINATOR: ActorKey.of_coordinator(3),
    Component.CATALOG: ActorKey.catalog(),
}
LEDGER = 9 << 24 | 1


def test_every_actor_with_a_journal_has_a_component() -> None:
    assert set(KEYS) == set(Component)
    for component, key in KEYS.items():
        assert component_of(key) is component
    with pytest.raises(MisaddressedEvent, match="deleter/0 has no ledgers"):
        event_of(ActorKey.of_garbage_collector(0), LEDGER)


@pytest.mark.parametrize("key", KEYS.values(), ids=map(str, KEYS))
def test_an_event_survives_encoding(key: ActorKey) -> None:
    event = event_of(key, LEDGER)
    assert decode_event(encode_event(event)) == event
    assert addressee(event) == key


def test_an_event_has_the_fields_of_pulsars_proposal() -> None:
    event = event_of(KEYS[Component.SUBSCRIPTION], LEDGER)
    assert vars(event) == {
        "topicName": "persistent://shop/eu/orders-partition-2",
        "ledgerComponent": "managed-cursor",
        "cursorName": "bills / 2",
        "schemaId": None,
        "ledgerType": "Ledger",
        "ledgerId": LEDGER,
        "offloadContext": None,
        "journal": KEYS[Component.SUBSCRIPTION].text(),
    }
    assert event_of(KEYS[Component.SCHEMAS], LEDGER).schemaId == "shop/eu/orders"


def test_the_avro_schema_uses_the_names_of_the_proposal() -> None:
    schema = json.loads(SCHEMA.info.data)
    assert schema["name"] == "PendingDeleteLedgerInfo"
    names = {field["name"] for field in schema["fields"]}
    assert names == {
        *("topicName", "ledgerComponent", "cursorName", "schemaId"),
        *("ledgerType", "ledgerId", "offloadContext", "journal"),
    }


@pytest.mark.parametrize("data", [b"", b"no event", b"\xff" * 60, bytes(3)])
def test_invalid_events_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedEvent):
        decode_event(data)


@pytest.mark.parametrize(
    "changes",
    [
        {"topicName": "persistent://shop/eu/orders-partition-1"},
        {"topicName": None},
        {"ledgerComponent": "managed-ledger"},
        {"ledgerComponent": "catalog"},
        {"cursorName": None},
        {"cursorName": "other"},
        {"schemaId": "shop/eu/orders"},
        {"ledgerType": "Offload-Ledger"},
        {"offloadContext": "x"},
        {"ledgerId": -1},
        {"journal": PARTITION.text()},
        {"journal": "../../etc/passwd"},
        {"journal": "deleter/0"},
        {"journal": ""},
    ],
    ids=lambda changes: "-".join(f"{name}={value}" for name, value in changes.items()),
)
def test_a_contradictory_event_is_misaddressed(changes: dict[str, Any]) -> None:
    event = replace(event_of(KEYS[Component.SUBSCRIPTION], LEDGER), **changes)
    with pytest.raises(MisaddressedEvent):
        addressee(event)
