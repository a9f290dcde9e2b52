"""A partition behind its fence takes nothing, and what is late of a migration moves no fence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.actors.test_partition import opened, partition, publish, stored
from velaray.actors.machine import InvariantViolation, Reason
from velaray.actors.partition.machine import (
    CreateSubscription,
    Damaged,
    DeleteSubscription,
    ExpireProducers,
    FindProducer,
    PartitionMachine,
    RaiseTopicEpoch,
    StartAt,
    Terminate,
)
from velaray.actors.partition.migration_fence import (
    Fence,
    FenceIs,
    FencePartition,
    UnfencePartition,
)
from velaray.actors.partition.state import SubscriptionRef
from velaray.actors.partition.transactions import EndTransaction
from velaray.actors.testing import given
from velaray.events.events_pb2 import PartitionFenced, PartitionUnfenced
from velaray.events.ids import TransactionId


def test_a_fence_is_set_once_and_removed_once() -> None:
    (
        partition()
        .when(FencePartition(2))
        .then(events=[PartitionFenced(migration=2)], reply=FenceIs(2))
        .when(FencePartition(2))
        .then(events=[], reply=FenceIs(2))
        .when(UnfencePartition(2))
        .then(events=[PartitionUnfenced(migration=2)], reply=FenceIs(0))
        .when(UnfencePartition(2))
        .then(events=[], reply=FenceIs(0))
    )


def test_late_requests_of_a_migration_do_not_change_the_fence() -> None:
    (
        partition()
        .when(UnfencePartition(2))  # before its fence was up: it won't be any more
        .then(events=[PartitionUnfenced(migration=2)])
        .when(FencePartition(2))
        .then_refused(Reason.CONFLICT, "migration 2 is over")
        .when(FencePartition(1))
        .then_refused(Reason.CONFLICT, "migration 1 is over")
        .when(FencePartition(3))
        .then(events=[PartitionFenced(migration=3)])
        .when(UnfencePartition(2))
        .then(events=[], reply=FenceIs(3))
        .when(FencePartition(4))
        .then(events=[PartitionFenced(migration=4)], reply=FenceIs(4))
        .when(UnfencePartition(3))
        .then(events=[], reply=FenceIs(4))
    )


@pytest.mark.parametrize(
    "command",
    [
        publish(1),
        publish(9),
        Damaged("torn"),
        RaiseTopicEpoch("p"),
        Terminate(),
        CreateSubscription("new", StartAt.EARLIEST),
        DeleteSubscription("s"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_fence_refuses_entries_producers_and_subscriptions(command: Any) -> None:
    history = partition().when(publish(1)).then(reply=stored(0))
    history.when(CreateSubscription("s", StartAt.EARLIEST)).when(FencePartition(1))
    history.when(command).then_refused(Reason.UNAVAILABLE, "look it up again")
    history.when(UnfencePartition(1)).when(command)
    assert getattr(history.reply, "reason", None) is not Reason.UNAVAILABLE


def test_reads_and_ends_of_transactions_continue_behind_a_fence() -> None:
    history = partition().when(CreateSubscription("s", StartAt.EARLIEST)).when(FencePartition(1))
    history.when(CreateSubscription("s", StartAt.EARLIEST)).then(reply=SubscriptionRef("s", 1, 0))
    history.when(FindProducer("p")).when(ExpireProducers(0)).then(events=[])
    ended = EndTransaction(TransactionId(0, 1), True)
    assert not isinstance(history.when(ended).reply, Reason)


def test_a_fence_survives_a_checkpoint_and_no_fence_keeps_the_old_form() -> None:
    machine = PartitionMachine()
    history = given(machine, opened()).when(FencePartition(3))
    assert machine.restore(dict(machine.snapshot(history.state))).fence == Fence(3, 0)  # type: ignore[arg-type]
    assert "fence" not in machine.snapshot(given(machine, opened()).state)


def test_a_fence_of_a_finished_migration_is_caught() -> None:
    history = partition().when(UnfencePartition(2))
    history.state.fence.up = 1
    with pytest.raises(InvariantViolation, match="no fence is up for a migration that is over"):
        history.machine.check(history.state)
