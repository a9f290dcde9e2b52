"""Bugs of Key_Shared, and of the limits of unacknowledged messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.sim.mutants.mutant import Mutant, always, do_nothing
from velaray.actors.dispatch.consumers import Attached
from velaray.actors.dispatch.draining import PendingHashes
from velaray.actors.dispatch.in_flight import InFlightTracker
from velaray.actors.dispatch.key_ranges import StickyRanges
from velaray.actors.dispatch.key_shared import KeySharedDispatch
from velaray.actors.dispatch.lease import LeasedDelivery
from velaray.actors.dispatch.unacked import UNLIMITED, UnackedLimits
from velaray.broker.partition import entries
from velaray.wire.hashing import sticky_hash
from velaray.wire.messages import read_metadata


def _hash_the_sequence_id(original: Any) -> Any:
    return lambda entry: sticky_hash(str(read_metadata(entry).sequence_id).encode())


def _free_at_the_first(original: Any) -> Any:
    def taken(self: PendingHashes, hashes: Sequence[int]) -> None:
        for hashed in hashes:
            if self._owners.pop(hashed, None) is not None:
                self._more.pop(hashed, None)
                self._drained.append(hashed)

    return taken


def _overtake(original: Any) -> Any:
    def give_new(self: KeySharedDispatch, out: list[Any]) -> bool:
        queues, self._queues = self._queues, {}
        given: bool = original(self, out)
        for hashed, queue in self._queues.items():
            queues[hashed] = sorted(queues.get(hashed, []) + queue)
        self._queues = queues
        return given

    return give_new


def _room_for_the_blocked(original: Any) -> Any:
    def room(self: UnackedLimits, consumer: Attached) -> int:
        return UNLIMITED if consumer.blocked or self.blocked else original(self, consumer)

    return room


def _lease_without_limits(original: Any) -> Any:
    def begin(self: LeasedDelivery, first: int, permits: int, room: int) -> None:
        original(self, first, permits, UNLIMITED)

    return begin


_NOT_IN_FLIGHT = (
    (PendingHashes, "given", do_nothing),
    (InFlightTracker, "_check_pending", do_nothing),
)

MUTANTS: dict[str, Mutant] = {
    "skip-the-draining": Mutant(
        "a key's new consumer doesn't wait for the former one's entries",
        (*_NOT_IN_FLIGHT, (PendingHashes, "taken", do_nothing)),
        within=60,
    ),
    "free-a-key-too-early": Mutant(
        "the first acknowledgement of a key lets its new consumer begin",
        (
            (PendingHashes, "taken", _free_at_the_first),
            (InFlightTracker, "_check_pending", do_nothing),
        ),
        within=50,
    ),
    "hash-another-key": Mutant(
        "entries are routed by the hash of their sequence id",
        ((entries, "known_key_hash", _hash_the_sequence_id),),
        within=20,
    ),
    "overtake-waiting-entries": Mutant(
        "a new entry of a key doesn't wait behind the older ones",
        ((KeySharedDispatch, "_give_new", _overtake), (KeySharedDispatch, "check", do_nothing)),
        within=50,
    ),
    "let-ranges-overlap": Mutant(
        "two sticky consumers have the same hashes",
        ((StickyRanges, "refusal", always(None)),),
        within=100,
    ),
    "serve-blocked-consumers": Mutant(
        "a blocked consumer gets more messages",
        ((UnackedLimits, "room", _room_for_the_blocked),),
        within=50,
    ),
    "lease-without-limits": Mutant(
        "a consumer under a dispatch lease may hold any number of messages",
        ((LeasedDelivery, "__init__", _lease_without_limits),),
        within=100,
    ),
}
