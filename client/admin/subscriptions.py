"""Administration of subscriptions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from annotated_types import Ge, Le
from typing_extensions import TypedDict

from velaray.client.admin.connection import Resource
from velaray.client.admin.errors import NotFound
from velaray.client.admin.operations import (
    BYTES,
    FORCE,
    AnyObject,
    Operation,
    Parameter,
    Texts,
    Whole,
    flag,
    reads,
)
from velaray.client.admin.paths import force_query, id_body, subscription_path, topic_path
from velaray.client.admin.topics import TOPIC
from velaray.client.message_id import MessageId
from velaray.events.ids import INT64_MAX
from velaray.events.ids import MessageId as StoredId


@dataclass(frozen=True, slots=True)
class PeekedEntry:
    """An unacknowledged entry. Its payload is a batch if ``messages_in_batch`` isn't None."""

    message_id: MessageId
    payload: bytes
    publish_time: int
    properties: Mapping[str, str]
    messages_in_batch: int | None


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


class Subscriptions(Resource):
    """The durable subscriptions of topics."""

    def __call__(self, topic: str) -> list[str]:
        """Return the names of the durable subscriptions."""
        return list(self._connection.request("GET", f"{topic_path(topic)}/subscriptions"))

    def create(
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
        self._connection.request("PUT", subscription_path(topic, subscription), body)

    def delete(self, topic: str, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription. Raises `PreconditionFailed` while it has consumers, unless
        ``force``."""
        query = force_query(force)
        self._connection.request("DELETE", subscription_path(topic, subscription), query=query)

    def seek(self, topic: str, subscription: str, to: MessageId | int) -> None:
        """Move a subscription to a message id, or to a publish time in milliseconds since 1970.

        That message is delivered next. An id belongs to one partition, so a partitioned topic
        accepts only the earliest and the latest.
        """
        path = f"{subscription_path(topic, subscription)}/resetcursor"
        if isinstance(to, MessageId):
            self._connection.request("POST", path, id_body(to))
        else:
            self._connection.request("POST", f"{path}/{to}")

    def skip(self, topic: str, subscription: str, entries: int | None = None) -> None:
        """Acknowledge the next ``entries`` of every partition; None: the whole backlog."""
        what = "skip_all" if entries is None else f"skip/{entries}"
        self._connection.request("POST", f"{subscription_path(topic, subscription)}/{what}")

    def describe(self, topic: str, subscription: str) -> dict[str, Any]:
        """Return what a subscription holds and what blocks it, by the name of the partition."""
        path = f"{subscription_path(topic, subscription)}/describe"
        return dict(self._connection.request("GET", path))

    def expire(self, topic: str, subscription: str | None, seconds: int) -> None:
        """Expire messages that were published at least ``seconds`` ago, for one subscription, or
        (None) for all."""
        whose = f"{topic_path(topic)}/all_subscription"
        if subscription is not None:
            whose = subscription_path(topic, subscription)
        self._connection.request("POST", f"{whose}/expireMessages/{seconds}")

    def explain(self, topic: str, subscription: str, message_id: MessageId) -> dict[str, Any]:
        """Return what happened to a message in a subscription: the ``facts`` of its journals, in
        order, and its state ``now``."""
        wanted = f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.partition()}"
        path = f"{subscription_path(topic, subscription)}/why/{wanted}"
        return dict(self._connection.request("GET", path))

    def undo(
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
        named = {"event": event, "time": time_ms}
        query = {name: str(value) for name, value in named.items() if value is not None}
        method = "GET" if preview else "POST"
        path = f"{subscription_path(topic, subscription)}/undo"
        return dict(self._connection.request(method, path, query=query))

    def peek(self, topic: str, subscription: str, number: int = 1) -> PeekedEntry | None:
        """Return the ``number``-th unacknowledged entry (from 1) of a plain topic or partition, or
        None."""
        path = f"{subscription_path(topic, subscription)}/position/{number}"
        try:
            response, content = self._connection.exchange("GET", path)
        except NotFound:
            if subscription not in self(topic):
                raise
            return None
        headers = response.headers
        batch = headers["X-Pulsar-num-batch-message"]
        return PeekedEntry(
            MessageId.from_stored(StoredId.parse(headers["X-Pulsar-Message-ID"])),
            content,
            _milliseconds(headers["X-Pulsar-publish-time"]),
            json.loads(headers["X-Pulsar-PROPERTY"] or "{}"),
            None if batch is None else int(batch),
        )


def _milliseconds(text: str) -> int:
    """Return the time of a header in milliseconds since 1970. It is a number, or a date in Pulsar's
    form."""
    if text.isdigit():
        return int(text)
    since = datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(milliseconds=1)
