"""The fence around a partition whose tenant moves to another cluster: rules of its machine.

Behind it nothing is appended, no subscription is made or deleted, no producer takes over; what
transactions wrote can still be decided. Replicators read on. It is put up for one migration and
taken down for that one: what arrives late of an earlier one changes nothing.

Commands: `FencePartition`, `UnfencePartition`. Events: PartitionFenced, PartitionUnfenced.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import Message

from velaray.actors.machine import Decision, Reason, refuse, require
from velaray.events.events_pb2 import PartitionFenced, PartitionUnfenced


@dataclass(frozen=True, slots=True)
class FencePartition:
    """Put up the fence for a migration. Reply: `FenceIs`, also if it is up for that one.

    Refused CONFLICT if the migration is over.
    """

    migration: int


@dataclass(frozen=True, slots=True)
class UnfencePartition:
    """A migration came to nothing. Reply: `FenceIs`; a later one's fence stays up."""

    migration: int


@dataclass(frozen=True, slots=True)
class FenceIs:
    """For which migration the fence is up; 0: it isn't."""

    migration: int


@dataclass(slots=True)
class Fence:
    """For which migration it is ``up`` (0: none), and up to which one they are ``over``."""

    up: int = 0
    over: int = 0


def decide(fence: Fence, command: FencePartition | UnfencePartition) -> Decision:
    """What a command of this module leads to."""
    migration = command.migration
    if isinstance(command, FencePartition):
        if migration <= fence.over or migration < fence.up:
            return refuse(Reason.CONFLICT, f"migration {migration} is over: its fence stays down")
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
    """The refusal of what may not come through."""
    why = "the topic is moving to another cluster: look it up again"
    return refuse(Reason.UNAVAILABLE, why)
