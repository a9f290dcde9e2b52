"""What of a committed transaction goes to other clusters, as its coordinator keeps it."""

from __future__ import annotations

import json

import pytest

from velaray.actors.coordinator.machine import (
    AddPartitions,
    Begin,
    CoordinatorMachine,
    Decide,
    Finish,
    Spread,
    SpreadIs,
)
from velaray.actors.coordinator.state import CoordinatorState
from velaray.actors.machine import InvariantViolation, Reason
from velaray.actors.testing import History, given
from velaray.events.events_pb2 import (
    ClusterParticipants,
    LedgerOpened,
    TransactionFinished,
    TransactionSpread,
)

MACHINE = CoordinatorMachine()
SPREAD = {"west": ["a", "b"], "north": ["a"]}


def committing() -> History[CoordinatorState]:
    story = given(MACHINE, LedgerOpened(ledger_id=1, epoch=1)).when(Begin(1000))
    return story.when(AddPartitions(1, ["a", "b", "c"])).when(Decide(1, True))


def test_the_first_list_of_participants_is_kept_until_the_transaction_is_finished() -> None:
    clusters = [
        ClusterParticipants(cluster="north", topics=["a"]),
        ClusterParticipants(cluster="west", topics=["a", "b"]),
    ]
    (
        committing()
        .when(Spread(1, SPREAD))
        .then(events=[TransactionSpread(sequence=1, clusters=clusters)], reply=SpreadIs(SPREAD))
        .when(Spread(1, {"west": ["a"]}))
        .then(events=[], reply=SpreadIs(SPREAD))
        .when(Finish(1))
        .then(events=[TransactionFinished(sequence=1)])
        .when(Spread(1, SPREAD))
        .then_refused(Reason.CONFLICT, "isn't being committed")
    )


@pytest.mark.parametrize("commands", [[], [Decide(1, False)], [Decide(1, False), Finish(1)]])
def test_only_committing_transactions_are_replicated(commands: list) -> None:
    story = given(MACHINE, LedgerOpened(ledger_id=1, epoch=1)).when(Begin(1000))
    for command in commands:
        story.when(command)
    story.when(Spread(1, SPREAD)).then_refused(Reason.CONFLICT)
    story.when(Spread(2, SPREAD)).then_refused(Reason.CONFLICT)


def test_only_checkpoints_with_replicated_transactions_have_the_new_form() -> None:
    story = committing().when(Begin(1000)).when(Spread(1, SPREAD))
    segments = story.segments()
    gone, stays = json.loads(segments["unfinished"])
    assert gone[len(stays) :] == [SPREAD]
    assert MACHINE.restore(segments).unfinished[1].spread == SPREAD


def test_a_broken_invariant_is_named() -> None:
    story = given(MACHINE, LedgerOpened(ledger_id=1, epoch=1)).when(Begin(1000))
    story.state.unfinished[1].spread = dict(SPREAD)
    with pytest.raises(InvariantViolation, match="replicated transactions are being committed"):
        MACHINE.check(story.state)
