"""A subscription's side of telling other clusters what it has
(`velaray.actors.subscription.progress_exports`).

It says once to its partition that there is something new (``progressed``), and again after it
was asked what that is. So who isn't to be told anything costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import Message

from velaray.actors.runtime import Runtime
from velaray.actors.sets.offset_sets import Range
from velaray.actors.subscription.cursor import mask_to_words
from velaray.actors.subscription.machine import SubscriptionMachine, SubscriptionState
from velaray.actors.subscription.progress_exports import DONE, Exports, Token, touched_by, window
from velaray.actors.subscription.redelivery import CountRuns


class WatchedSubscription(SubscriptionMachine):
    """A subscription's machine that says what is about to change, if anybody asked."""

    def __init__(self) -> None:
        self.watch: Callable[[SubscriptionState, Message], None] | None = None

    def evolve(self, state: SubscriptionState, event: Message) -> None:
        """As every subscription."""
        if self.watch is not None:
            self.watch(state, event)
        super().evolve(state, event)


class Exporter:
    """Of one activation of a subscription."""

    def __init__(self, activation: str, told: Callable[[], None]) -> None:
        """``told`` is called when there is something new, once until it is asked for."""
        self._exports = Exports(activation)
        self._told = told
        self._silent = False

    @property
    def attentive(self) -> bool:
        """Whether anybody is to hear of changes."""
        return not self._silent or bool(self._exports)

    def watch(self, state: SubscriptionState, event: Message) -> None:
        """The state is about to change."""
        if self.attentive:
            self.touch(touched_by(state, event))

    def touch(self, ranges: Sequence[Range]) -> None:
        """There may be something new at these offsets."""
        if not ranges:
            return
        self._exports.touch(ranges)
        if not self._silent:
            self._silent = True
            self._told()

    def speak_up(self) -> None:
        """Say the next time that there is something new, whoever was told before."""
        self._silent = False

    async def next(
        self,
        runtime: Runtime[SubscriptionState],
        cluster: str,
        token: Token | None,
        known_from: int,
        in_vain: CountRuns | None,
    ) -> dict[str, Any]:
        """What a cluster is to be told that has all up to this token, and the token then. All of it
        is durable; ``in_vain`` are the counts if those of the state are behind. Before
        ``known_from`` the mark says all.

        ``begins`` is whether this is the beginning of an export, ``more`` whether it goes on.
        Raises what `Runtime.read` raises: it is told when it is asked for again.
        """
        self._silent = False
        part = self._exports.next(cluster, token)
        if not part.news:
            return {"token": token, "news": False, "begins": False, "more": False}

        def look(state: SubscriptionState) -> dict[str, Any]:
            counts = state.deliveries if in_vain is None else in_vain
            found = window(state.cursor, counts, part.places, part.at, known_from)
            return {
                "token": self._exports.token(part, found.at),
                "news": True,
                "begins": part.at == 0,
                "more": found.at != DONE,
                "mark": found.mark,
                "before": [list(each) for each in found.before],
                "ranges": [list(each) for each in found.ranges],
                "partial": [[offset, mask_to_words(mask)] for offset, mask in found.partial],
                "counts": [list(each) for each in found.counts],
            }

        return await runtime.read(look)
