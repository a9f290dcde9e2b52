"""Administration of subscriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from annotated_types import Ge, Le
from typing_extensions import TypedDict

from velaray.client.admin.calls import call
from velaray.client.admin.connection import ModeT, Resource
from velaray.client.admin.entries import PeekedEntry, entry_of
from velaray.client.admin.errors import NotFound
from velaray.client.admin.operations import (
    BYTES,
    FORCE,
    AnyObject,
    Operation,
    Parameter,
    Query,
    Texts,
    Whole,
    flag,
    reads,
)
from velaray.client.admin.paths import id_body, of_subscription, of_topic
from velaray.client.admin.topics import TOPIC
from velaray.client.message_id import MessageId
from velaray.events.ids import INT64_MAX

SUBSCRIPTION = f"{TOPIC}/subscription/{{subscription}}"


class MessageIdBody(TypedDict, total=False):
    """The id of a message, in the form of Pulsar's tools."""

    ledgerId: Annotated[int, Ge(-1), Le(INT64_MAX)]
    entryId: Annotated[int, Ge(-1), Le(INT64_MAX)]
    partitionIndex: Annotated[int, Ge(-1), Le(INT64_MAX)]


class Cursor(MessageIdBody, total=False):
    """A message id, and whether it is excluded."""

    excluded: bool
    isExcluded: bool


class NewSubscription(MessageIdBody, total=False):
    """The first message of a new subscription, by default the next one, and its properties."""

    properties: Texts


EVENT: Parameter[int | None] = Parameter("event", Whole, None, "Undo the moves since this event.")
SINCE: Parameter[int | None] = Parameter(
    "time", Whole, None, "Undo the moves since this time (ms)."
)
REPLICATED = flag("replicated", "Replicate the subscription's state to other clusters.")

LIST = reads(f"{TOPIC}/subscriptions", list[str])
CREATE = Operation("PUT", SUBSCRIPTION, (REPLICATED,), body=NewSubscription)
DELETE = Operation("DELETE", SUBSCRIPTION, (FORCE,))
SEEK_ID = Operation("POST", f"{SUBSCRIPTION}/resetcursor", body=Cursor)
SEEK_TIME = Operation("POST", f"{SUBSCRIPTION}/resetcursor/{{timestamp}}")
SKIP = Operation("POST", f"{SUBSCRIPTION}/skip/{{count}}")
SKIP_ALL = Operation("POST", f"{SUBSCRIPTION}/skip_all")
DESCRIBE = reads(f"{SUBSCRIPTION}/describe", dict[str, AnyObject])
EXPIRE = Operation("POST", f"{SUBSCRIPTION}/expireMessages/{{seconds}}")
EXPIRE_ALL = Operation("POST", f"{TOPIC}/all_subscription/expireMessages/{{seconds}}")
EXPLAIN = reads(f"{SUBSCRIPTION}/why/{{message}}", AnyObject)
PREVIEW_UNDO = reads(f"{SUBSCRIPTION}/undo", dict[str, AnyObject], EVENT, SINCE)
UNDO = Operation(
    "POST", f"{SUBSCRIPTION}/undo", (EVENT, SINCE), answers={200: dict[str, AnyObject]}
)
PEEK = Operation(
    "GET", f"{SUBSCRIPTION}/position/{{position}}", answers={200: bytes}, content=BYTES
)


class Subscriptions(Resource[ModeT]):
    """The durable subscriptions of topics."""

    @call
    async def __call__(self, topic: str) -> list[str]:
        """Return the names of the durable subscriptions."""
        return list(await self._ask(LIST, of_topic(topic)))

    @call
    async def create(
        self,
        topic: str,
        subscription: str,
        start: MessageId = MessageId.latest,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Create a durable subscription. Raises `Conflict` if every partition has it.

        ``start`` is the first message that it receives; on a partitioned topic the earliest or the
        latest.
        """
        body = {**id_body(start), "properties": dict(properties or {})}
        await self._ask(CREATE, of_subscription(topic, subscription), body=body)

    @call
    async def delete(self, topic: str, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription. Raises `PreconditionFailed` while it has consumers, unless
        ``force``."""
        await self._ask(DELETE, of_subscription(topic, subscription), {FORCE: force})

    @call
    async def seek(self, topic: str, subscription: str, to: MessageId | int) -> None:
        """Move a subscription to a message id, or to a publish time in milliseconds since 1970.

        That message is delivered next. An id belongs to one partition, so a partitioned topic
        accepts only the earliest and the latest.
        """
        whose = of_subscription(topic, subscription)
        if isinstance(to, MessageId):
            await self._ask(SEEK_ID, whose, body=id_body(to))
        else:
            await self._ask(SEEK_TIME, {**whose, "timestamp": to})

    @call
    async def skip(self, topic: str, subscription: str, entries: int | None = None) -> None:
        """Acknowledge the next ``entries`` of every partition; None: the whole backlog."""
        whose = of_subscription(topic, subscription)
        if entries is None:
            await self._ask(SKIP_ALL, whose)
        else:
            await self._ask(SKIP, {**whose, "count": entries})

    @call
    async def describe(self, topic: str, subscription: str) -> dict[str, Any]:
        """Return what a subscription holds and what blocks it, by the name of the partition."""
        return dict(await self._ask(DESCRIBE, of_subscription(topic, subscription)))

    @call
    async def expire(self, topic: str, subscription: str | None, seconds: int) -> None:
        """Expire messages that were published at least ``seconds`` ago, for one subscription, or
        (None) for all."""
        age = {"seconds": seconds}
        if subscription is None:
            await self._ask(EXPIRE_ALL, of_topic(topic) | age)
        else:
            await self._ask(EXPIRE, of_subscription(topic, subscription) | age)

    @call
    async def explain(self, topic: str, subscription: str, message_id: MessageId) -> dict[str, Any]:
        """Return what happened to a message in a subscription: the ``facts`` of its journals, in
        order, and its state ``now``."""
        wanted = f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.partition()}"
        whose = of_subscription(topic, subscription)
        return dict(await self._ask(EXPLAIN, {**whose, "message": wanted}))

    @call
    async def undo(
        self,
        topic: str,
        subscription: str,
        *,
        event: int | None = None,
        time_ms: int | None = None,
        preview: bool = False,
    ) -> dict[str, Any]:
        """Undo moves of a subscription's cursor: the last seek, skip or requested expiry, or all
        moves since ``event`` of its journal or since ``time_ms``. Later acknowledgements remain.

        Return the changes by the name of the partition, without partitions where nothing moved;
        with ``preview`` nothing is changed. Raises `NotFound` if nothing moved anywhere or the
        moves aren't known any more. Raises `PreconditionFailed` if messages that would have to be
        delivered again were trimmed; then nothing is changed. A later error names the partitions
        that are changed and those that aren't.
        """
        operation = PREVIEW_UNDO if preview else UNDO
        query: Query = {EVENT: event, SINCE: time_ms}
        return dict(await self._ask(operation, of_subscription(topic, subscription), query))

    @call
    async def peek(self, topic: str, subscription: str, number: int = 1) -> PeekedEntry | None:
        """Return the ``number``-th unacknowledged entry (from 1) of a plain topic or partition, or
        None."""
        whose = of_subscription(topic, subscription)
        try:
            answer = await self._exchange(PEEK, {**whose, "position": number})
        except NotFound:
            if subscription not in await self._ask(LIST, of_topic(topic)):
                raise
            return None
        return entry_of(answer)
