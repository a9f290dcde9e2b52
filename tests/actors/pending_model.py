"""Acknowledgements in transactions as plain sets of messages, to compare the machine with.

It knows nothing of marks, masks or ranges: a message is (offset, index in its batch).
"""

from __future__ import annotations

from typing import NamedTuple

from velaray.actors.subscription.machine import SubscriptionState
from velaray.events.ids import TransactionId

Messages = frozenset[tuple[int, int]]


class Seen(NamedTuple):
    """Acknowledged messages, and pending ones by transaction: individual and cumulative."""

    acked: Messages
    held: dict[TransactionId, Messages]
    before: dict[TransactionId, Messages]


class Conflict(Exception):
    """The transaction may not acknowledge this."""


class Log:
    """A log of batches of these sizes."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes

    def messages(self, offset: int, ack_set: int = 0) -> Messages:
        """Those of a batch but the remaining ones."""
        size = self.sizes[offset]
        return frozenset((offset, at) for at in range(size) if not ack_set >> at & 1)

    def before(self, offset: int, ack_set: int | None) -> Messages:
        """All before an offset, and those of the batch there but the remaining ones."""
        found = frozenset().union(*(self.messages(at) for at in range(offset)))
        return found if ack_set is None else found | self.messages(offset, ack_set)


NOTHING = Seen(frozenset(), {}, {})


def ack(seen: Seen, messages: Messages) -> Seen:
    """Acknowledge for good: it is pending no longer."""
    acked = seen.acked | messages
    held = {who: what - acked for who, what in seen.held.items() if what - acked}
    before = {who: what for who, what in seen.before.items() if what - acked}
    return Seen(acked, held, before)


def hold(seen: Seen, who: TransactionId, messages: Messages, whole: bool) -> Seen:
    """Acknowledge in a transaction, one by one. A ``whole`` entry may be acknowledged in part."""
    if messages <= seen.acked if whole else messages & seen.acked:
        raise Conflict
    messages -= seen.acked
    if messages <= seen.held.get(who, frozenset()):
        return seen  # a repetition
    if any(messages & held for held in seen.held.values()):
        raise Conflict
    if any(messages & what for other, what in seen.before.items() if other != who):
        raise Conflict
    return seen._replace(held={**seen.held, who: seen.held.get(who, frozenset()) | messages})


def hold_before(seen: Seen, who: TransactionId, messages: Messages) -> Seen:
    """Acknowledge in a transaction, cumulatively."""
    mine = seen.before.get(who)
    if mine == messages:
        return seen  # a repetition
    if messages <= seen.acked or set(seen.before) - {who} or (mine and not mine < messages):
        raise Conflict
    if any(held & messages - seen.acked for other, held in seen.held.items() if other != who):
        raise Conflict
    return seen._replace(before={**seen.before, who: messages})


def end(seen: Seen, who: TransactionId, commit: bool) -> Seen:
    """The transaction commits or aborts."""
    held, before = dict(seen.held), dict(seen.before)
    mine = held.pop(who, frozenset()) | before.pop(who, frozenset())
    rest = Seen(seen.acked, held, before)
    return ack(rest, mine) if commit else rest


def see(state: SubscriptionState, log: Log) -> Seen:
    """What the machine's state says."""
    acked: set[tuple[int, int]] = set()
    for offset in range(len(log.sizes)):
        if state.cursor.is_acked(offset):
            acked |= log.messages(offset)
        elif (ack_set := state.cursor.ack_set(offset)) is not None:
            acked |= log.messages(offset, ack_set)
    held, before = {}, {}
    for who, mine in state.pending.items():
        found = frozenset(
            message
            for first, stop in mine.ranges
            for offset in range(first, stop)
            for message in log.messages(offset)
        )
        parts = [log.messages(offset, ~bits) for offset, bits in mine.partial.items()]
        if found or parts:
            held[who] = found.union(*parts) - acked
        if mine.before is not None:
            before[who] = log.before(*mine.before)
    return Seen(frozenset(acked), held, before)
