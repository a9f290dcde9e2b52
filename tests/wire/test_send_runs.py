"""Runs of SENDs are cut out of a buffer, and answered, as single SENDs are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velaray.events.varints import consecutive
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Send, send_header, send_receipt
from velaray.wire.frames import FrameParser
from velaray.wire.messages import build_entry
from velaray.wire.send_runs import MOST_BYTES, send_receipts
from velaray.wire.varint import varint

numbers = st.one_of(
    st.integers(0, 400), st.integers(16_000, 17_000), st.integers((1 << 62), (1 << 63) - 400)
)


def entry(size: int, **fields: int) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **fields)
    return build_entry(metadata, b"x" * size)


def sends(first: int, sizes: list[int], producer_id: int = 1, messages: int = 1) -> list[bytes]:
    return [
        send_header(producer_id, first + at, messages, len(entry(size))) + entry(size)
        for at, size in enumerate(sizes)
    ]


@given(numbers, st.integers(0, 300))
def test_varints_of_consecutive_numbers(first: int, count: int) -> None:
    assert consecutive(first, count) == [varint(each) for each in range(first, first + count)]


@given(st.integers(0, 200), numbers, numbers, numbers, st.integers(1, 300))
def test_receipts_of_a_run(
    producer_id: int, first: int, ledger_id: int, entry_id: int, count: int
) -> None:
    assert send_receipts(producer_id, first, ledger_id, entry_id, count) == b"".join(
        send_receipt(producer_id, first + at, ledger_id, entry_id + at) for at in range(count)
    )


@given(
    st.integers(0, 140),
    numbers,
    st.lists(st.integers(0, 200), min_size=1, max_size=40),
    st.sampled_from([1, 2, 200]),
    st.integers(0, 10_000),
    st.integers(0, 40),
)
@settings(max_examples=300)
def test_a_run_has_the_sends_of_single_frames(
    producer_id: int, first: int, sizes: list[int], messages: int, cut: int, kept: int
) -> None:
    data = b"".join(sends(first, sizes, producer_id, messages))
    data = data[: len(data) - cut % len(data)]
    runs, singles = FrameParser(), FrameParser()
    for parser in (runs, singles):
        parser.feed(data)
    expected = []
    while (frame := singles.next_frame()) is not None:
        expected.append(frame)
    run = runs.next_run()
    found = []
    if run is not None:
        kept = min(kept, len(run.entries))
        assert run.size == sum(map(len, run.entries))
        found = [
            (Send(producer_id, run.first_sequence_id + at, run.messages), each)
            for at, each in enumerate(run.entries[:kept])
        ]
        runs.put_back(kept)
    while (frame := runs.next_frame()) is not None:
        found.append(frame)
    assert found == expected


def test_what_differs_ends_a_run() -> None:
    plain = sends(5, [1, 2, 3, 4])
    damaged = plain[2][:-1] + b"y"
    for third in (damaged, *sends(8, [3]), *sends(7, [3], 2), *sends(7, [3], messages=2)):
        parser = FrameParser()
        parser.feed(plain[0] + plain[1] + third + plain[3])
        run = parser.next_run()
        assert run is not None
        assert run.entries == [entry(1), entry(2)]
        assert parser.buffered == len(third + plain[3])


@pytest.mark.parametrize(
    "sent",
    [
        [(number, at) for at in range(5) for number in (1, 2)],  # producers take turns
        [(1, at) for at in range(0, 50, 10)],  # of batches whose messages are numbered
    ],
)
def test_sends_that_no_run_can_continue_are_single_frames(sent: list[tuple[int, int]]) -> None:
    """A run of one would cost more than a frame, and official clients send little else if they
    batch: each message has a number, and one connection carries the producers of a host."""
    frames = [frame for number, at in sent for frame in sends(at, [100], number)]
    parser = FrameParser()
    parser.feed(b"".join(frames))
    for _ in frames:
        assert parser.next_run() is None
        assert parser.next_frame() is not None
    assert parser.buffered == 0


def test_large_entries_are_no_run() -> None:
    parser = FrameParser()
    parser.feed(b"".join(sends(1, [10, MOST_BYTES, 10])))
    run = parser.next_run()
    assert run is not None
    assert len(run.entries) == 1
    assert parser.next_run() is None


def test_one_frame_is_no_run() -> None:
    (only,) = sends(1, [10])
    parser = FrameParser()
    parser.feed(only + only[:20])
    assert parser.next_run() is None
    assert parser.next_frame() == (Send(1, 1), entry(10))


def test_a_run_without_the_tag_of_delivery_times_is_not_delayed() -> None:
    parser = FrameParser()
    parser.feed(b"".join(sends(1, [1, 2, 3])))
    run = parser.next_run()
    assert run is not None
    assert not run.may_be_delayed


def test_a_run_may_be_delayed() -> None:
    later = entry(1, deliver_at_time=9)
    parser = FrameParser()
    parser.feed(b"".join([*sends(1, [1, 2]), send_header(1, 3, 1, len(later)) + later]))
    run = parser.next_run()
    assert run is not None
    assert run.may_be_delayed
