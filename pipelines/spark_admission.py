"""Admission: the share of each partition in a batch with limited messages or bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from velaray.client.read_bounds import Span, SpanLimits
from velaray.pipelines.spark_offsets import Progress


@dataclass(frozen=True)
class Limits:
    """The limits of one batch, over all partitions; 0 is no limit."""

    messages: int = 0
    bytes: int = 0

    def share(self, messages: int, bytes: int, among: int) -> SpanLimits | None:
        """Return an equal share of what is left; None if nothing is left."""
        shares: list[int] = []
        for limit, taken in ((self.messages, messages), (self.bytes, bytes)):
            shares.append((limit - taken) // among if limit else 0)
            if limit and shares[-1] <= 0:
                return None
        return SpanLimits(messages=shares[0], bytes=shares[1])

    def least(self) -> SpanLimits:
        """Return the smallest share."""
        return SpanLimits(min(self.messages, 1), min(self.bytes, 1))


Ask: TypeAlias = Callable[[Mapping[str, Progress], Mapping[str, SpanLimits]], Mapping[str, Span]]
"""Asks the service for the next steps of all partitions at once, from their current positions."""


@dataclass
class _Taken:
    """The part of a batch that one partition has so far."""

    progress: Progress
    messages: int = 0
    bytes: int = 0
    more: bool = True

    any: bool = False

    def add(self, span: Span) -> bool:
        """Add the next step; False if it is empty."""
        before, self.progress = self.progress, Progress.at_end_of(span)
        self.messages += span.messages
        self.bytes += span.bytes
        self.more = span.more
        moved = before.after != self.progress.after
        self.any = self.any or moved
        return moved


def admit(
    ask: Ask, begun: Mapping[str, Progress], order: Sequence[str], limits: Limits
) -> dict[str, Progress]:
    """Return the end of the next batch in each partition.

    All partitions get equal shares; unused parts of a share go to the others. The batch contains at
    least one entry of the first partition in ``order`` that has messages. If that entry exceeds the
    limit, the batch contains nothing else. Every partition is asked at least once.
    """
    taken = {name: _Taken(begun[name]) for name in order}
    share = limits.share(0, 0, max(len(order), 1)) or limits.least()
    asked = {name: replace(share, some=name == next(iter(order))) for name in order}
    while asked:
        found = ask({name: taken[name].progress for name in asked}, asked)
        moved = [name for name in asked if taken[name].add(found[name])]
        _keep_within(limits, taken, begun, order)
        hungry = [name for name in order if taken[name].more]
        # If the share is too small for an entry of every partition, fewer partitions share it.
        among = hungry if moved else hungry[: len(asked) // 2]
        share_of_rest = limits.share(*_sums(taken), len(among)) if among else None
        asked = dict.fromkeys(among, share_of_rest) if share_of_rest is not None else {}
        if not asked and hungry and not any(each.any for each in taken.values()):
            asked = {hungry[0]: replace(limits.share(0, 0, 1) or SpanLimits(), some=True)}
    return {name: each.progress for name, each in taken.items()}


def _sums(taken: Mapping[str, _Taken]) -> tuple[int, int]:
    return sum(each.messages for each in taken.values()), sum(each.bytes for each in taken.values())


def _keep_within(
    limits: Limits,
    taken: Mapping[str, _Taken],
    begun: Mapping[str, Progress],
    order: Sequence[str],
) -> None:
    """Clear the last partitions' parts if they and the first one's entry exceed the limits.

    The first partition that has messages keeps its part, whatever its size.
    """
    for name in reversed([name for name in order if taken[name].any][1:]):
        messages, size = _sums(taken)
        most, room = limits.messages, limits.bytes
        if not ((most and messages > most) or (room and size > room)):
            return
        each = taken[name]
        each.progress = replace(begun[name], mark=each.progress.mark)
        each.messages = each.bytes = 0
        each.any, each.more = False, True
