"""Detection of messages that a streaming query lost before reading them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from velaray.client.exceptions import VelarayError
from velaray.client.read_bounds import Span
from velaray.pipelines.spark_offsets import Progress
from velaray.pipelines.spark_positions import Place

logger = logging.getLogger("velaray")

_GO_ON = '.option("fail_on_data_loss", "false") continues without it'


class DataLossError(VelarayError):
    """Unread messages of a query may have been trimmed, or can't be read completely."""


class Losses:
    """Checks at each step of a query that its subscription kept the next messages.

    No unread message can be trimmed while the retention mark is at its last position. If it isn't,
    the check raises `DataLossError`, or warns once per partition if the query may continue.
    """

    def __init__(self, subscription: str, fail: bool) -> None:
        self._subscription = subscription
        self._fail = fail
        self._told: set[str] = set()

    def check(
        self, begun: Mapping[str, Progress], found: Mapping[str, Span], again: bool = False
    ) -> None:
        """Check steps that begin at ``begun``. Raises `DataLossError`.

        ``again``: the steps were planned before. The query may have released these messages itself.
        Then only trimmed messages are a loss.
        """
        lost = {
            name: self._lost(begun[name], span)
            for name, span in found.items()
            if not again or span.trimmed or span.foreign
        }
        self.tell({name: what for name, what in lost.items() if what})

    def tell(self, lost: Mapping[str, str]) -> None:
        """Report a loss in these partitions. Raises `DataLossError`."""
        if not lost:
            return
        text = "; ".join(f"{name} {what}" for name, what in sorted(lost.items()))
        if self._fail:
            raise DataLossError(f"data that this query has not read yet is lost: {text}. {_GO_ON}")
        if not lost.keys() <= self._told:
            logger.warning("a query continues without lost data: %s", text)
        self._told |= lost.keys()

    def _lost(self, begun: Progress, span: Span) -> str | None:
        where = f"after {begun.after}"
        if span.foreign:
            return f"{where}: the topic was deleted and created again"
        if span.torn is not None:
            return (
                f"at {Place.of(span.torn)}: the first chunks of that message are too far back to"
                " be read with its last one"
            )
        name = f"subscription {self._subscription!r}"
        gone = f"{span.trimmed} entries are trimmed" if span.trimmed else "nothing is trimmed yet"
        if begun.mark is not None and begun.mark != span.incarnation:
            return f"{where}: {name}, which retains the unread messages, was deleted; {gone}"
        if span.passed and begun.mark is not None:
            return (
                f"{where}: others moved {name} forward, so it doesn't retain the next"
                f" {span.passed} entries; {gone}"
            )
        return None
