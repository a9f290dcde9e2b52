"""Administration of what queries of Spark's keep in the service."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

from velaray.client.admin.calls import call
from velaray.client.admin.connection import ModeT, Resource
from velaray.client.admin.operations import Operation, Parameter, Whole, reads
from velaray.client.admin.paths import of_subscription, of_topic
from velaray.client.admin.topics import TOPIC

ABANDONED_S = 3600
"""After so many seconds without a driver, a mark that holds messages counts as abandoned."""


class Mark(TypedDict):
    """A retention mark of a query of Spark's on one partition, and what it holds.

    ``lastActiveMs`` is when a driver was last connected, as far as the journal tells; None while
    one is connected, and if it isn't known. ``idleSeconds`` is the time since then, or the age of
    the oldest held message if that time isn't known.
    """

    topic: str
    subscription: str
    connected: bool
    entries: int
    bytes: int
    oldestSeconds: float
    lastActiveMs: int | None
    idleSeconds: float
    abandoned: bool


IDLE = Parameter(
    "idleSeconds",
    Whole,
    ABANDONED_S,
    "A mark that holds messages is abandoned after so many seconds without a driver.",
)

MARKS = reads(f"{TOPIC}/marks", list[Mark], IDLE)
RELEASE = Operation("DELETE", f"{TOPIC}/marks/{{subscription}}")


class Pipelines(Resource[ModeT]):
    """The retention marks of queries of Spark's: subscriptions that keep what a query may read."""

    @call
    async def marks(self, topic: str, idle_s: int = ABANDONED_S) -> list[dict[str, Any]]:
        """Return the retention marks of a topic, by partition.

        A mark is ``abandoned`` if no driver is connected for ``idle_s`` seconds while it holds
        messages.
        """
        return list(await self._ask(MARKS, of_topic(topic), {IDLE: idle_s}))

    @call
    async def release(self, topic: str, subscription: str) -> None:
        """Delete a retention mark on all partitions of a topic that have it.

        Messages that only the mark holds can be trimmed then. A query that goes on from its
        checkpoint fails with `DataLossError`. Raises `PreconditionFailed` while a driver is
        connected, and if the subscription isn't a mark; `NotFound` if there is none.
        """
        await self._ask(RELEASE, of_subscription(topic, subscription))
