"""The protocol of dispatch strategies, which share entries among a subscription's consumers.

There is one for each type of subscription: `velaray.actors.dispatch.single_active` (Exclusive,
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
    """Decides which consumer gets which entries of an in-flight tracker."""

    def refusal(self, spec: ConsumerSpec) -> Refusal | None:
        """Why a consumer of the right type can't be attached, if so."""
        ...

    def joined(self, consumer: Attached) -> list[ActiveChange]:
        """Take in an attached consumer; returns notices to Failover consumers."""
        ...

    def left(self, consumer: Attached) -> list[ActiveChange]:
        """Remove a detached consumer; returns notices to Failover consumers."""
        ...

    def waits(self, ranges: Sequence[Range]) -> None:
        """Take in entries that wait for redelivery from now on."""
        ...

    def can_take(self, consumer: Attached) -> None:
        """Note that a consumer may be able to take more than before."""
        ...

    def reset(self) -> None:
        """Forget all entries."""
        ...

    def candidates(self) -> Iterable[Attached]:
        """The consumers that may get entries, if they have permits."""
        ...

    def only_candidate(self) -> Attached | None:
        """The consumer that certainly gets all next entries; None if there is none."""
        ...

    def returned(self, consumer: Attached, named: Sequence[Range]) -> Sequence[Range]:
        """The entries to redeliver when a consumer asks for ``named``, which it holds."""
        ...

    def lease_report(self, consumer: Attached, chunk_keys: Mapping[int, str]) -> None:
        """Take in chunks that the partition delivered to the only candidate under a lease."""
        ...

    def is_active(self, consumer: Attached) -> bool:
        """Whether the consumer is one that gets entries."""
        ...

    def dispatch(self, out: list[Delivery]) -> None:
        """Deliver what can be delivered now."""
        ...

    def check(self) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        ...
