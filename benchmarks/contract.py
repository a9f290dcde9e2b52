"""What a peer offers: senders and takers, from which every workload is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

UNBATCHED, OWN, LISTS, ARROW = "unbatched", "own client", "lists", "arrow"
"""Ways in which a client is used, besides the usual one, which is ""."""

Done = Callable[[bytes], None]


class Absent(RuntimeError):
    """A peer can't be measured here; the text says why and what to do."""


class Sender(Protocol):
    """Publishes to one topic; used by one thread."""

    def send_many(self, payload: bytes, count: int) -> None:
        """Hand over ``count`` messages; may return before their receipts are there."""
        ...

    def wait(self) -> None:
        """Return when the receipt of everything that was handed over has arrived."""
        ...


@runtime_checkable
class SingleSender(Protocol):
    """A sender for messages that don't wait for each other, to measure latency."""

    def send_each(self, payloads: Sequence[bytes], done: Done) -> None:
        """Send these now, each at once; ``done(payload)`` is called upon its receipt."""
        ...


class Taker(Protocol):
    """Receives and acknowledges for one subscription; used by one thread."""

    def take(self, most: int) -> int:
        """Receive up to ``most`` messages, acknowledge each; 0 if none came in a while."""
        ...

    def finish(self) -> None:
        """Return when the server has every acknowledgement, durably where it can be."""
        ...


@runtime_checkable
class PayloadTaker(Protocol):
    """A taker that hands out what it received, to measure latency."""

    def take_payloads(self) -> Sequence[bytes]:
        """Receive what there is, acknowledge it; nothing if nothing came in a while."""
        ...


class Peer(Protocol):
    """A running system. Ends, with all its processes and files, with its context.

    ``way`` names how a client is used, for peers that have several; others ignore it.
    """

    settings: dict[str, str]

    def servers(self) -> Iterable[int]:
        """The processes that serve messages."""
        ...

    def prepare(self, topic: str, subscriptions: Sequence[str]) -> None:
        """Make a topic and durable subscriptions that get everything from now on."""
        ...

    def remove(self, topic: str) -> None:
        """Delete a topic without connections, where that's usual."""
        ...

    def sender(self, topic: str, way: str) -> AbstractContextManager[Sender]:
        """Connect a producer."""
        ...

    def taker(self, topic: str, subscription: str, way: str) -> AbstractContextManager[Taker]:
        """Connect a consumer."""
        ...

    def single_sender(self, topic: str, way: str) -> AbstractContextManager[SingleSender]:
        """Connect a producer that batches nothing unless messages wait anyway."""
        ...


@dataclass(frozen=True, slots=True)
class Transacted:
    """What was committed: how many messages each way, how long until the last commit, and how
    long each commit took.
    """

    messages: int
    seconds: float
    commits_s: Sequence[float]


NOTHING_LEFT_S = 0.5
"""A transactor ends early if it waits so long for a message."""


def transacted(each: int, began: float, commits: Sequence[tuple[float, float]]) -> Transacted:
    """Of transactions of ``each`` messages, by when their commits began and ended."""
    seconds = max((end for _, end in commits), default=began) - began
    return Transacted(each * len(commits), seconds, [end - start for start, end in commits])


class Transactor(Protocol):
    """Consumes, processes (copies) and produces; a transaction for each so many messages."""

    def run(self, each: int, at_once: int, seconds: float) -> Transacted:
        """Transactions of ``each`` messages received, sent and acknowledged, ``at_once`` of them
        in flight, for ``seconds`` or until nothing is left; until the last is committed.
        """
        ...


@runtime_checkable
class TransactionalPeer(Peer, Protocol):
    """A system that has transactions."""

    def transactor(
        self, source: str, target: str, way: str, most_at_once: int
    ) -> AbstractContextManager[Transactor]:
        """Make both topics and connect. The target's durable subscription is `RESULTS`."""
        ...


RESULTS = "results"
ONE_ELSEWHERE, MANY, BEHIND = "1 elsewhere", "1,000", "behind one"
"""Open transactions: one with a message in another topic; a thousand of these, each with an
acknowledgement of the subscription that is measured; one on the topic itself, aborted after
`BEHIND_S`, then the next.
"""
BEHIND_S = 0.1


@runtime_checkable
class HoldingPeer(Peer, Protocol):
    """A system that transactions can be held open in."""

    def holding(self, topic: str, subscription: str, held: str) -> AbstractContextManager[None]:
        """Have transactions open within the context, while others use the topic."""
        ...
