"""Exports a subscription's progress to other clusters.

`velaray.actors.subscription.progress_exports` tracks what each cluster lacks. The subscription
notifies its partition once that there is something new (`ProgressMade`), and again only after the
partition has asked for it, so a cluster that never asks costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import Message

from velaray.actors.runtime import Runtime
from velaray.actors.sets.offset_sets import Range
from velaray.actors.subscription.cursor import mask_to_words
from velaray.actors.subscription.machine import SubscriptionState
from velaray.actors.subscription.progress_exports import DONE, Exports, Token, touched_by, window
from velaray.actors.subscription.redelivery import CountRuns


class Exporter:
    """Exports the progress of one activation of a subscription to other clusters."""

    def __init__(self, activation: str, told: Callable[[], None]) -> None:
        """``told`` is called when there is something new, and not again until `next` is called."""
        self._exports = Exports(activation)
        self._told = told
        self._silent = False

    @property
    def attentive(self) -> bool:
        """Whether changes must be tracked."""
        return not self._silent or bool(self._exports)

    def applied(self, events: Sequence[Message], reply: Any) -> None:
        """Track the changes of a decision; called as `Runtime.on_applied`."""
        if self.attentive:
            self.touch(touched_by(events, reply))

    def touch(self, ranges: Sequence[Range]) -> None:
        """Track that these offsets may have changed."""
        if not ranges:
            return
        self._exports.touch(ranges)
        if not self._silent:
            self._silent = True
            self._told()

    def speak_up(self) -> None:
        """Send a notice at the next change, even if the last one is unanswered."""
        self._silent = False

    async def next(
        self,
        runtime: Runtime[SubscriptionState],
        cluster: str,
        token: Token | None,
        known_from: int,
        failed: CountRuns | None,
    ) -> dict[str, Any]:
        """The next part of the export for a cluster that has everything up to ``token``.

        Everything in it is durable. ``failed`` are the counts of failed deliveries if those of
        the state are behind. The mark covers everything before ``known_from``. In the result,
        ``begins`` is whether the part begins an export, and ``more`` whether others follow.

        Raises what `Runtime.read` raises; then asking again with the same token gives the part.
        """
        self._silent = False
        part = self._exports.next(cluster, token)
        if not part.news:
            return {"token": token, "news": False, "begins": False, "more": False}

        def look(state: SubscriptionState) -> dict[str, Any]:
            counts = state.deliveries if failed is None else failed
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
