"""How much a replicator asks for, and when it stops reading."""

from __future__ import annotations

from velaray.events.ids import Position
from velaray.geo.replication.replication_window import WINDOW, WINDOW_BYTES, Held, Window
from velaray.wire.pulsar_pb2 import MessageMetadata


def came(window: Window, entries: int, messages: int, size: int = 100) -> None:
    for number in range(entries):
        window.take(Held(Position(1, number), messages, size, 1, None))
        window.settle()


def test_the_first_request_is_for_one_message() -> None:
    assert 1 <= Window().wanted() <= WINDOW


def test_the_window_requests_as_many_messages_as_its_entries_have() -> None:
    window = Window()
    for _ in range(2000):
        window.wanted()
        came(window, 1, 1000)
    window.wanted()
    assert window.permits > 1000 * WINDOW // 2


def test_one_small_entry_among_batches_lowers_the_estimate_at_once() -> None:
    window = Window()
    for _ in range(2000):
        window.wanted()
        came(window, 1, 1000)
    came(window, 1, 1)
    window.permits = 0
    assert window.wanted() <= WINDOW


def test_large_entries_are_requested_one_by_one() -> None:
    window = Window()
    window.wanted()
    came(window, 1, 1, WINDOW_BYTES)
    window.permits = 0
    assert window.wanted() == 1


def test_a_full_window_stops_reading() -> None:
    window = Window()
    outgoing = None
    for number in range(2 * WINDOW + 1):
        assert not window.overfull
        window.take(Held(Position(1, number), 1, 1, 1, outgoing))
    assert window.overfull


def test_only_confirmed_entries_are_released() -> None:
    window = Window()
    for number in range(4):
        outgoing = None if number == 2 else (b"entry", MessageMetadata(), 0)
        window.take(Held(Position(1, number), 1, 1, 1, outgoing))
    while window.next_unsent() is not None:
        window.sent()
    assert window.settle() is None
    assert [held.position.entry_id for held in window.confirmed(1)] == [0]
    assert window.settle() == Position(1, 0)
    assert [held.position.entry_id for held in window.confirmed(2)] == [1, 3]
    assert window.settle() == Position(1, 3)
    assert not window
