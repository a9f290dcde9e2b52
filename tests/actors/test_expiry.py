"""What expires is acknowledged for good, counted by its reason, and nothing else is touched."""

from __future__ import annotations

import pytest

from velaray.actors.machine import Reason
from velaray.actors.subscription.cursor import Cursor
from velaray.actors.subscription.expiry import Expire, Expired, ExpiryReason
from velaray.actors.subscription.machine import Ack, CursorAt, Reset, SubscriptionMachine
from velaray.actors.testing import given
from velaray.events.events_pb2 import CursorCreated, CursorReset, EntriesExpired

END = 100


def begun():
    return given(SubscriptionMachine(), CursorCreated(start_offset=10))


def test_only_unacked_entries_expire_and_are_counted() -> None:
    history = begun().when(Ack(END, [(12, 14)], [(15, 0b10)]))
    history.when(Expire(END, [(0, 20)], ExpiryReason.TTL)).then(
        events=[EntriesExpired(ranges=[10, 2, 2, 6], reason="ttl")],
        reply=Expired(((10, 12), (14, 20))),
    )
    assert (history.state.cursor, history.state.expired) == (Cursor(20), {"ttl": 8})
    history.when(Expire(END, [(5, 20)], ExpiryReason.QUOTA)).then(events=[], reply=Expired())
    history.when(Expire(END, [(30, 32)], ExpiryReason.QUOTA)).then(reply=Expired(((30, 32),)))
    assert history.state.expired == {"ttl": 8, "quota": 2}


@pytest.mark.parametrize("ranges", [[(-1, 2)], [(5, 5)], [(99, 101)]])
def test_entries_outside_the_log_cannot_expire(ranges) -> None:
    begun().when(Expire(END, ranges, ExpiryReason.TTL)).then_refused(Reason.INVALID)


def test_nothing_expires_before_the_subscription_is_created() -> None:
    refused = given(SubscriptionMachine()).when(Expire(END, [(0, 5)], ExpiryReason.TTL))
    refused.then_refused(Reason.NOT_FOUND)


def test_a_reset_skips_trimmed_entries() -> None:
    history = (
        begun()
        .when(Reset(5, "seek", [(0, 8), (20, 30)]))
        .then(
            events=[
                CursorReset(next_offset=5, reason="seek"),
                EntriesExpired(ranges=[5, 3, 12, 10], reason="trimmed"),
            ],
            reply=CursorAt(5),
        )
    )
    assert history.state.cursor == Cursor(8, [(20, 30)])
    history.when(Reset(40, "seek", [(0, 8), (20, 30)])).then(
        events=[CursorReset(next_offset=40, reason="seek")], reply=CursorAt(40)
    )
    history.when(Reset(40, "again", [(0, 8)])).then(events=[], reply=CursorAt(40))
