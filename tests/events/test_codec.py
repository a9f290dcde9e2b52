"""Events keep their bytes for ever, and bytes that are no known event are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, json_format
from google.protobuf.message import Message
from hypothesis import example, given
from hypothesis import strategies as st

from tests.events import golden
from velaray.events.codec import (
    MalformedEventError,
    UnknownEventError,
    decode,
    decode_entries,
    encode,
    event_types,
)
from velaray.events.events_pb2 import (
    EntryAppended,
    Event,
    LedgerOpened,
    PartialAck,
    TenantCreated,
    TopicCreated,
    TopicTerminated,
)

SAMPLES = golden.load()
PROTO = Path(__file__).resolve().parents[2] / "events" / "events.proto"


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.number}-{s.event}")
def test_an_event_keeps_its_number_its_fields_and_its_bytes(sample: golden.Sample) -> None:
    kind = event_types()[sample.number]
    assert kind.DESCRIPTOR.name == sample.event
    message = sample.message(kind)
    assert encode(message).hex() == sample.bytes
    assert decode(bytes.fromhex(sample.bytes)) == message


def test_every_field_of_every_event_has_golden_bytes() -> None:
    assert golden.uncovered(SAMPLES) == {}, "run python -m tests.events.golden"


def test_a_new_event_or_field_without_golden_bytes_is_noticed() -> None:
    without_tenants = [sample for sample in SAMPLES if sample.event != "TenantCreated"]
    assert golden.uncovered(without_tenants) == {11: {"tenant", "admin_roles", "allowed_clusters"}}
    fields: dict[str, object] = {
        "before_offset": "1",
        "partial": {"offset": "2"},
        "consumer": 1,
        "reason": "skip",
    }
    bare = golden.Sample(72, "MarkDeleted", fields, "")
    others = [sample for sample in SAMPLES if sample.number != 72]
    assert golden.uncovered([*others, bare]) == {72: {"partial.remaining"}}


def test_a_changed_number_or_name_is_noticed() -> None:
    (sample,) = [sample for sample in SAMPLES if sample.event == "TenantDeleted"]
    kind, raw = event_types()[sample.number], bytes.fromhex(sample.bytes)
    assert raw[0] == 13 << 3 | 2 and raw[2] == 1 << 3 | 2
    other_event = bytes([14 << 3 | 2]) + raw[1:]
    other_field = raw[:2] + bytes([2 << 3 | 2]) + raw[3:]
    assert decode(other_event) != sample.message(kind)
    assert decode(other_field) != sample.message(kind)
    with pytest.raises(json_format.ParseError):
        sample._replace(fields={"renamed": "x"}).message(kind)


def test_the_bytes_are_those_of_the_envelope() -> None:
    for number, kind in event_types().items():
        message = golden.filled(kind)
        (field,) = [field for field in Event.DESCRIPTOR.fields if field.number == number]
        envelope = Event()
        getattr(envelope, field.name).CopyFrom(message)
        getattr(envelope, field.name).SetInParent()
        assert encode(message) == envelope.SerializeToString(deterministic=True)


def test_event_numbers_lie_in_the_range_of_their_kind_of_actor() -> None:
    text = PROTO.read_text(encoding="utf-8")
    body = text[text.index("oneof kind {") :]
    numbers = [int(n) for n in re.findall(r"= (\d+);", body[: body.index("}")])]
    assert numbers == sorted(numbers) and len(set(numbers)) == len(numbers)
    assert numbers == sorted(event_types())
    ranges = [(1, 9), (10, 39), (40, 69), (70, 99), (100, 129), (130, 159), (160, 189)]
    assert all(any(low <= n <= high for low, high in ranges) for n in numbers)


def test_equal_events_have_equal_bytes_however_they_were_built() -> None:
    keys = [f"key {n}" for n in range(40)]
    forward, backward = TopicCreated(topic="t"), TopicCreated(topic="t")
    for key in keys:
        forward.properties[key] = key
    for key in reversed(keys):
        backward.properties[key] = key
    assert encode(forward) == encode(backward)


@pytest.mark.parametrize(
    "message", [PartialAck(offset=1), Event(), descriptor_pb2.DescriptorProto()]
)
def test_objects_other_than_journaled_events_are_refused(message: Message) -> None:
    with pytest.raises(UnknownEventError, match=type(message).__name__):
        encode(message)


@pytest.mark.parametrize("number", [2, 9, 39, 199, 2047, 500_000])
def test_an_unknown_event_is_refused_by_number(number: int) -> None:
    assert number not in event_types()
    tag = _varint(number << 3 | 2)
    with pytest.raises(UnknownEventError, match=rf"\b{number}\b.*Upgrade"):
        decode(tag + b"\x00")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x0a",
        b"\x8a",
        b"\x0a\x80",
        b"\x0a\x05\x08\x01",
        b"\x0a\x02\x08\x01\x00",
        b"\x0a\x02\x08\x01\x0a\x02\x08\x01",
        b"\x8a\x00\x02\x08\x01",
        b"\x0a\x82\x00\x08\x01",
        b"\x8a\x80\x80\x80\x80\x80\x01\x00",
        b"\x0a\x02\x08\x80",
        b"\x5a\x03\x0a\x01\xff",
    ],
    ids=lambda raw: raw.hex() or "empty",
)
def test_invalid_bytes_of_an_event_are_refused(raw: bytes) -> None:
    with pytest.raises(MalformedEventError):
        decode(raw)


def test_a_number_in_another_wire_type_is_unknown() -> None:
    with pytest.raises(UnknownEventError):
        decode(b"\x08\x00")


def test_an_event_without_fields_survives() -> None:
    assert decode(encode(TopicTerminated())) == TopicTerminated()
    assert decode(encode(LedgerOpened())) == LedgerOpened()


@given(st.binary(max_size=64))
@example(b"\x0a\x00")
def test_any_bytes_are_an_event_or_refused(raw: bytes) -> None:
    try:
        event = decode(raw)
    except (UnknownEventError, MalformedEventError):
        return
    assert type(event) in event_types().values()


@given(st.sampled_from(SAMPLES), st.data())
def test_a_truncated_event_is_refused(sample: golden.Sample, data: st.DataObject) -> None:
    raw = bytes.fromhex(sample.bytes)
    length = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(MalformedEventError):
        decode(raw[:length])


@given(st.text(), st.lists(st.text()))
def test_any_text_survives(tenant: str, roles: list[str]) -> None:
    event = TenantCreated(tenant=tenant, admin_roles=roles)
    assert decode(encode(event)) == event


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_any_number_survives(ledger_id: int, epoch: int) -> None:
    event = LedgerOpened(ledger_id=ledger_id, epoch=epoch)
    assert decode(encode(event)) == event


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


@given(
    st.lists(st.builds(EntryAppended, sequence_id=st.integers(0, 2**64 - 1), chunk_uuid=st.text()))
)
def test_entries_are_decoded_together_as_one_by_one(entries: list[EntryAppended]) -> None:
    raw = [encode(entry) for entry in entries]
    assert list(decode_entries(raw)) == [decode(each) for each in raw] == entries


@pytest.mark.parametrize("other", [TopicTerminated(), TenantCreated(tenant="t")])
def test_another_event_among_entries_is_refused_by_name(other: Message) -> None:
    raw = [encode(EntryAppended(sequence_id=1)), encode(other), encode(EntryAppended())]
    with pytest.raises(MalformedEventError, match=type(other).__name__):
        decode_entries(raw)


def test_entries_that_end_early_are_refused() -> None:
    with pytest.raises(MalformedEventError, match="EntryAppended"):
        decode_entries([encode(EntryAppended(sequence_id=1))[:-1]])
