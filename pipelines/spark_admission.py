"""How much of each partition goes into a batch whose messages or bytes are limited."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from velaray.client.read_bounds import Span, SpanLimits
from velaray.pipelines.spark_offsets import Progress


@dataclass(frozen=True)
class Limits:
    """Of one batch, over all partitions; 0 is no limit."""

    messages: int = 0
    bytes: int = 0

    def share(self, messages: int, bytes: int, among: int) -> SpanLimits | None:
        """An equal share of what is left when so much is taken; None if that is nothing."""
        shares: list[int] = []
        for limit, taken in ((self.messages, messages), (self.bytes, bytes)):
            shares.append((limit - taken) // among if limit else 0)
            if limit and shares[-1] <= 0:
                return None
        return SpanLimits(messages=shares[0], bytes=shares[1])

    def least(self) -> SpanLimits:
        """The smallest share."""
        return SpanLimits(min(self.messages, 1), min(self.bytes, 1))


Ask: TypeAlias = Callable[[Mapping[str, Progress], Mapping[str, SpanLimits]], Mapping[str, Span]]
"""Asks the service for the next steps from where partitions are, all at once."""


@dataclass
class _Taken:
    """What a batch has of one partition so far."""

    progress: Progress
    messages: int = 0
    bytes: int = 0
    more: bool = True

    any: bool = False

    def add(self, span: Span) -> bool:
        """The next step is taken, too; False if it holds nothing."""
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
    """How far the next batch goes in each partition.

    All get the same; what some leave goes to the others. Of the first one in ``order`` that has
    anything the batch has an entry in any case, though there be more in that than the limit: then
    nothing else. Every partition is asked at least once.
    """
    taken = {name: _Taken(begun[name]) for name in order}
    share = limits.share(0, 0, max(len(order), 1)) or limits.least()
    asked = {name: replace(share, some=name == next(iter(order))) for name in order}
    while asked:
        found = ask({name: taken[name].progress for name in asked}, asked)
        moved = [name for name in asked if taken[name].add(found[name])]
        _keep_within(limits, taken, begun, order)
        hungry = [name for name in order if taken[name].more]
        # A share in which nobody has room for an entry is shared by fewer.
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
    """Take back what the last ones got if it is too much together with the first one's entry.

    The first one is the first that has anything: what it has stays, however much that is.
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
