"""How entries are shared among the consumers of a subscription: what every way has in common.

There is one for each kind of subscription: `velaray.actors.dispatch.single_active` (Exclusive,
Failover), `velaray.actors.dispatch.shared` (Shared), `velaray.actors.dispatch.key_shared`
(Key_Shared). It lives as long as there are consumers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from velaray.actors.dispatch.consumers import ActiveChange, Attached, ConsumerSpec, Delivery
from velaray.actors.machine import Refusal
from velaray.actors.sets.ranges import Range


class DispatchStrategy(Protocol):
    """Decides which consumer gets which entries of a dispatcher's books."""

    def refusal(self, spec: ConsumerSpec) -> Refusal | None:
        """Why a consumer of the right type can't be attached, if so."""
        ...

    def joined(self, consumer: Attached) -> list[ActiveChange]:
        """A consumer was attached; returns who is to be told."""
        ...

    def left(self, consumer: Attached) -> list[ActiveChange]:
        """A consumer was detached; returns who is to be told."""
        ...

    def waits(self, ranges: Sequence[Range]) -> None:
        """These entries came back, and wait from now on."""
        ...

    def can_take(self, consumer: Attached) -> None:
        """A consumer may be able to take more than before."""
        ...

    def reset(self) -> None:
        """Nothing is held or waits any longer."""
        ...

    def candidates(self) -> Iterable[Attached]:
        """The consumers that may get entries, if they have permits."""
        ...

    def only_candidate(self) -> Attached | None:
        """The consumer that gets all entries whatever they are, if that is certain."""
        ...

    def returned(self, consumer: Attached, named: Sequence[Range]) -> Sequence[Range]:
        """What goes back if a consumer asks for ``named``, which it holds, again."""
        ...

    def lease_report(self, consumer: Attached, chunk_keys: Mapping[int, str]) -> None:
        """The partition delivered by itself to the only candidate; these were chunks."""
        ...

    def is_active(self, consumer: Attached) -> bool:
        """Whether the consumer is one that gets entries."""
        ...

    def dispatch(self, out: list[Delivery]) -> None:
        """Give out what can be given out now."""
        ...

    def check(self) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        ...
