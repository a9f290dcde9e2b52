"""The fence around a partition whose tenant moves to another cluster: rules of its machine.

Behind the fence nothing is appended, no subscription is created or deleted, and no producer takes
over; transactions can still be decided, and replicators continue to read. A fence is put up and
taken down for one migration: late commands of an earlier one change nothing.

Commands: `FencePartition`, `UnfencePartition`. Events: PartitionFenced, PartitionUnfenced.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import Message

from velaray.actors.machine import Decision, Reason, refuse, require
from velaray.events.events_pb2 import PartitionFenced, PartitionUnfenced


@dataclass(frozen=True, slots=True)
class FencePartition:
    """Put up the fence for a migration. Reply: `FenceIs`, also for a repetition.

    Refused CONFLICT if the migration is over.
    """

    migration: int


@dataclass(frozen=True, slots=True)
class UnfencePartition:
    """Take down the fence of a migration that was rolled back. Reply: `FenceIs`; a later
    migration's fence stays up."""

    migration: int


@dataclass(frozen=True, slots=True)
class FenceIs:
    """The migration of the fence; 0: there is none."""

    migration: int


@dataclass(slots=True)
class Fence:
    """The migration whose fence is ``up`` (0: none), and the newest one that is ``over``."""

    up: int = 0
    over: int = 0


def decide(fence: Fence, command: FencePartition | UnfencePartition) -> Decision:
    """The decision on a command of this module."""
    migration = command.migration
    if isinstance(command, FencePartition):
        if migration <= fence.over or migration < fence.up:
            return refuse(
                Reason.CONFLICT, f"migration {migration} is over: it can't put up its fence again"
            )
        events = () if fence.up == migration else (PartitionFenced(migration=migration),)
        return Decision(events, FenceIs(migration))
    if migration <= fence.over or migration < fence.up:
        return Decision(reply=FenceIs(fence.up))
    return Decision((PartitionUnfenced(migration=migration),), FenceIs(0))


def evolve(fence: Fence, event: Message) -> None:
    """Apply an event of this module."""
    match event:
        case PartitionFenced(migration=migration):
            fence.up = migration
        case PartitionUnfenced(migration=migration):
            fence.up, fence.over = 0, migration


def check(fence: Fence) -> None:
    """Raise `InvariantViolation` if an invariant is broken."""
    require(not 0 < fence.up <= fence.over, "no fence is up for a migration that is over")


def objection() -> Decision:
    """The refusal of a command that the fence forbids."""
    problem = "the topic is moving to another cluster: look it up again"
    return refuse(Reason.UNAVAILABLE, problem)
