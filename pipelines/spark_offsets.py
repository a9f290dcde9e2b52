"""The progress of a streaming query, in the form of Spark's checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from velaray import MessageId
from velaray.client.read_bounds import Span, Spot
from velaray.pipelines.spark_positions import Place, number_of


@dataclass(frozen=True)
class Progress:
    """The progress of a query in one topic partition: after an entry.

    ``entries`` and ``given_up`` are as in `velaray.client.read_bounds.Spot`. ``mark`` is the
    incarnation of the query's subscription. Messages with chunks on both sides of this position
    begin after ``chunks``. None means unknown, or that there is none.
    """

    after: Place
    entries: int | None = None
    mark: int | None = None
    chunks: Place | None = None
    given_up: bool = False

    @staticmethod
    def at_end_of(span: Span) -> Progress:
        """The progress at the end of a step."""
        spot = span.end
        chunks = None if spot.chunks_after is None else Place.of(spot.chunks_after)
        after = Place.of(spot.after)
        return Progress(after, spot.entries, span.incarnation, chunks, spot.given_up)

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Progress:
        """Read the form of `to_json`."""
        places = {name: Place.parse(found[name]) for name in ("after", "chunks") if name in found}
        return Progress(**{**found, **places})

    def to_json(self) -> dict[str, Any]:
        """The form for a checkpoint."""
        named = {
            "after": str(self.after),
            "entries": self.entries,
            "mark": self.mark,
            "chunks": None if self.chunks is None else str(self.chunks),
            "given_up": self.given_up or None,
        }
        return {name: value for name, value in named.items() if value is not None}

    def spot(self, partition: str) -> Spot:
        """The progress in the form of service requests."""
        number = number_of(partition)

        def entry(place: Place) -> MessageId:
            return MessageId(number, *place)

        chunks = None if self.chunks is None else entry(self.chunks)
        return Spot(entry(self.after), self.entries, chunks, self.given_up)

    @property
    def kept(self) -> Place:
        """The end of the messages that are never read again."""
        return self.after if self.chunks is None else min(self.after, self.chunks)


@dataclass(frozen=True)
class Offset:
    """The progress of a query in each partition, and the name of its retention subscription.

    With the name a query finds its subscription by its checkpoint alone. Spark stores the ends of
    batches, but not the start of the first one. That start is stored in the first end as ``begun``.
    A query without a batch has no subscription yet.
    """

    subscription: str | None
    partitions: Mapping[str, Progress]
    begun: Mapping[str, Progress] | None = None

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Offset:
        """Read the form of `to_json`."""
        begun = _read(found["begun"]) if "begun" in found else None
        return Offset(found["subscription"], _read(found["partitions"]), begun)

    def to_json(self) -> dict[str, Any]:
        """The form that Spark stores."""
        written = {"subscription": self.subscription, "partitions": _written(self.partitions)}
        return written if self.begun is None else {**written, "begun": _written(self.begun)}


NOWHERE = Offset(None, {})


def _read(found: Mapping[str, Any]) -> dict[str, Progress]:
    return {name: Progress.from_json(found[name]) for name in found}


def _written(partitions: Mapping[str, Progress]) -> dict[str, Any]:
    return {name: partitions[name].to_json() for name in sorted(partitions)}
