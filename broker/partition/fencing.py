"""Ends an activation of a partition when another actor refuses it as superseded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from velaray.actors.machine import Reason
from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.events.ids import ActorKey
from velaray.journal.errors import Fenced
from velaray.topology.actor_system import ActorSystem, Unreachable
from velaray.topology.rpc import RemoteError


class Partition(Protocol):
    """What `superseded_if_fenced` needs of a partition."""

    key: ActorKey
    actor_system: ActorSystem
    runtime: Runtime[PartitionState]


@contextlib.contextmanager
def superseded_if_fenced(partition: Partition) -> Iterator[None]:
    """End the partition's activation if the actor called inside answers that it is fenced.

    Then there is a newer activation of this partition, or the actor was deleted. Raises
    `Unreachable` in that case, since the caller's request is valid and can be retried.
    """
    try:
        yield
    except RemoteError as error:
        if error.kind != Reason.FENCED:
            raise
        fenced = Fenced(partition.key.text(), partition.runtime.journal.epoch)
        partition.actor_system.fatal(partition, fenced)
        raise Unreachable(f"{partition.key.topic_name} is served by another activation") from error
