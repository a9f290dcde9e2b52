"""Administration of topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from velaray.client.admin.calls import call
from velaray.client.admin.connection import ModeT, Resource
from velaray.client.admin.entries import PeekedEntry, entry_of
from velaray.client.admin.errors import Conflict, NotFound
from velaray.client.admin.operations import (
    BYTES,
    FORCE,
    V2,
    Operation,
    Parameter,
    Query,
    Texts,
    Whole,
    flag,
    reads,
)
from velaray.client.admin.paths import message_id, of_namespace, of_topic
from velaray.client.admin.topic_stats import (
    InternalStats,
    PartitionedInternalStats,
    PartitionedTopicStats,
    TopicStats,
)
from velaray.client.message_id import MessageId
from velaray.events.ids import TopicName

TOPICS = f"{V2}/persistent/{{tenant}}/{{namespace}}"
TOPIC = f"{TOPICS}/{{topic}}"
_PARTITIONS = f"{TOPIC}/partitions"


class PartitionedTopic(TypedDict):
    """The number of partitions of a topic to be created, and its properties."""

    partitions: int
    properties: NotRequired[Texts | None]


class DeletedTopic(TypedDict):
    """A deleted topic that can be undeleted: its number of partitions, 0 for a plain topic, the
    time of its deletion, and the time until which it can be undeleted, in milliseconds since 1970.

    ``deletedMs`` is null if an earlier version of velaray deleted it.
    """

    topic: str
    partitions: int
    deletedMs: int | None
    restorableUntilMs: int


class NewMessage(TypedDict):
    """A message to be published; ``data`` is a text, or bytes in base64."""

    data: str
    encoding: NotRequired[Literal["text", "base64"]]
    key: NotRequired[str]
    properties: NotRequired[Texts]


class Partitions(TypedDict):
    """The number of partitions of a topic; 0: it has none."""

    partitions: int


class MessageIdData(TypedDict):
    """The id of a message, in Pulsar's form."""

    ledgerId: int
    entryId: int
    partitionIndex: int


class Compaction(TypedDict):
    """The result of the last compaction."""

    status: Literal["NOT_RUN", "RUNNING", "SUCCESS", "ERROR"]
    lastError: str


class OffloadBefore(TypedDict, total=False):
    """The message before whose ledger all ledgers are offloaded."""

    ledgerId: int
    entryId: int
    partitionIndex: int


class Offloading(TypedDict):
    """The result of the last offload, and the first message that isn't in the archive."""

    status: Literal["NOT_RUN", "RUNNING", "SUCCESS", "ERROR"]
    lastError: str
    firstUnoffloadedMessage: NotRequired[MessageIdData]


SIZE_THRESHOLD = Parameter(
    "sizeThreshold", Whole, 0, "Without a body: bytes of the newest ledgers that stay."
)
MAY_CREATE = flag("checkAllowAutoCreation", "Create a missing topic if policy allows.")
NO_PUBLISHERS = flag("excludePublishers", "Leave the publishers out.")
NO_CONSUMERS = flag("excludeConsumers", "Leave the consumers out.")
PER_PARTITION = Parameter("perPartition", bool, True, "Add the statistics of each partition.")

FROM = Parameter("initialPosition", str, "latest", "Count from the earliest or the latest entry.")
POSITION = Parameter("messagePosition", Whole, 1, "Which entry, from 1.")

LIST = reads(TOPICS, list[str])
CREATE = Operation("PUT", TOPIC, body=Texts)
CREATE_PARTITIONED = Operation("PUT", _PARTITIONS, body=int | PartitionedTopic)
DELETE = Operation("DELETE", TOPIC, (FORCE,))
DELETE_PARTITIONED = Operation("DELETE", _PARTITIONS, (FORCE,))
UNDELETE = Operation("POST", f"{TOPIC}/undelete")
DELETED = reads(f"{V2}/namespaces/{{tenant}}/{{namespace}}/deletedTopics", list[DeletedTopic])
PARTITIONS = reads(_PARTITIONS, Partitions, MAY_CREATE)
GROW = Operation("POST", _PARTITIONS, body=int)
STATS = reads(f"{TOPIC}/stats", TopicStats, NO_PUBLISHERS, NO_CONSUMERS)
PARTITIONED_STATS = reads(
    f"{TOPIC}/partitioned-stats", PartitionedTopicStats, PER_PARTITION, NO_PUBLISHERS, NO_CONSUMERS
)
INTERNAL_STATS = reads(f"{TOPIC}/internalStats", InternalStats)
PARTITIONED_INTERNAL_STATS = reads(f"{TOPIC}/partitioned-internalStats", PartitionedInternalStats)
LAST_MESSAGE_ID = reads(f"{TOPIC}/lastMessageId", MessageIdData)
EXAMINE = Operation(
    "GET", f"{TOPIC}/examinemessage", (FROM, POSITION), answers={200: bytes}, content=BYTES
)
READ_ENTRY = Operation(
    "GET", f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}", answers={200: bytes}, content=BYTES
)
"""Answer a stored entry: metadata in headers, the payload uncompressed."""
TERMINATE = Operation(
    "POST", f"{TOPIC}/terminate", answers={200: MessageIdData | dict[str, MessageIdData]}
)
PUBLISH = Operation("POST", f"{TOPIC}/messages", body=NewMessage, answers={200: MessageIdData})
COMPACT = Operation("PUT", f"{TOPIC}/compaction")
COMPACTION = reads(f"{TOPIC}/compaction", Compaction)
OFFLOAD = Operation("PUT", f"{TOPIC}/offload", (SIZE_THRESHOLD,), body=OffloadBefore)
OFFLOAD_STATUS = reads(f"{TOPIC}/offload", Offloading)
UNLOAD = Operation("PUT", f"{TOPIC}/unload")


class Topics(Resource[ModeT]):
    """The topics of namespaces."""

    @call
    async def __call__(self, namespace: str = "public/default") -> dict[str, int]:
        """Return the topics of ``tenant/namespace``: the number of partitions by name, 0 for a
        plain topic."""
        found: dict[str, int] = {}
        for text in await self._ask(LIST, of_namespace(namespace)):
            name = TopicName.parse(text)
            found[str(name.topic)] = max(found.get(str(name.topic), 0), name.partition + 1)
        return found

    @call
    async def create(
        self, topic: str, *, partitions: int = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic. Raises `Conflict` if it exists."""
        given = dict(properties or {})
        if partitions:
            body = {"partitions": partitions, "properties": given}
            await self._ask(CREATE_PARTITIONED, of_topic(topic), body=body)
        else:
            await self._ask(CREATE, of_topic(topic), body=given)

    @call
    async def delete(self, topic: str, *, force: bool = False) -> None:
        """Delete a topic with its messages and subscriptions.

        Raises `PreconditionFailed` while clients are connected, unless ``force``. Repeat a deletion
        that failed half-way to finish it.
        """
        query = {FORCE: force}
        try:
            await self._ask(DELETE, of_topic(topic), query)
        except Conflict:
            await self._ask(DELETE_PARTITIONED, of_topic(topic), query)

    @call
    async def undelete(self, topic: str) -> None:
        """Restore a deleted topic with its messages, subscriptions and policies.

        Raises `NotFound` unless it was deleted within the cluster's window for that (by default
        there is none), and `Conflict` if there is a newer topic with the name.
        """
        await self._ask(UNDELETE, of_topic(topic))

    @call
    async def deleted(self, namespace: str = "public/default") -> list[dict[str, Any]]:
        """Return the deleted topics of ``tenant/namespace`` that can be undeleted, each with
        ``topic``, ``partitions``, ``deletedMs`` and ``restorableUntilMs``; of each name the one
        that was deleted last.

        The namespace may be deleted too: its topics can be undeleted once it is created again.
        Raises `NotFound` if there is neither the namespace nor such a topic.
        """
        return list(await self._ask(DELETED, of_namespace(namespace)))

    @call
    async def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic; 0 for a plain one."""
        return await self._partitions(topic)

    @call
    async def grow(self, topic: str, partitions: int) -> None:
        """Add partitions to a partitioned topic, so that it has ``partitions`` in all."""
        await self._ask(GROW, of_topic(topic), body=partitions)

    @call
    async def stats(self, topic: str) -> dict[str, Any]:
        """Return statistics; of a partitioned topic the sums, and those of each partition in
        ``partitions``."""
        operation = PARTITIONED_STATS if await self._partitions(topic) > 0 else STATS
        return dict(await self._ask(operation, of_topic(topic)))

    @call
    async def internal_stats(self, topic: str) -> dict[str, Any]:
        """Return ledgers and cursors; of a partitioned topic in ``partitions``."""
        partitioned = await self._partitions(topic) > 0
        operation = PARTITIONED_INTERNAL_STATS if partitioned else INTERNAL_STATS
        return dict(await self._ask(operation, of_topic(topic)))

    @call
    async def examine(
        self, topic: str, number: int = 1, *, earliest: bool = False
    ) -> PeekedEntry | None:
        """Return the ``number``-th entry (from 1) of a plain topic or partition, counted back from
        the newest one, or forward from the oldest one. None if there are no entries; the last one
        in that direction if there are fewer."""
        query: Query = {FROM: "earliest" if earliest else "latest", POSITION: number}
        try:
            return entry_of(await self._exchange(EXAMINE, of_topic(topic), query))
        except NotFound:
            await self._partitions(topic)  # raises if there is no such topic
            return None

    @call
    async def last_message_id(self, topic: str) -> MessageId:
        """Return the last entry of a plain topic or a partition; entry id -1 if there is none."""
        return message_id(await self._ask(LAST_MESSAGE_ID, of_topic(topic)))

    @call
    async def terminate(self, topic: str) -> list[MessageId]:
        """Terminate a topic, so that it accepts no more messages. Return the last id of every
        partition, in order."""
        found = await self._ask(TERMINATE, of_topic(topic))
        if "ledgerId" in found:
            return [message_id(found)]
        return [message_id(found[number]) for number in sorted(found, key=int)]

    @call
    async def publish(
        self,
        topic: str,
        data: str,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        encoding: Literal["text", "base64"] = "text",
    ) -> MessageId:
        """Publish one message, for tests by hand, and return its id. Clients publish faster.
        With ``encoding`` "base64" ``data`` stands for bytes.

        Raises `PreconditionFailed` if the topic doesn't accept it, such as data that doesn't fit
        the topic's schema. After `Unavailable` the message may be stored.
        """
        body: dict[str, Any] = {
            "data": data,
            "encoding": encoding,
            "properties": dict(properties or {}),
        }
        if key is not None:
            body["key"] = key
        return message_id(await self._ask(PUBLISH, of_topic(topic), body=body))

    @call
    async def compact(self, topic: str) -> None:
        """Begin to compact every partition of a topic. Raises `Conflict` while one is being
        compacted."""
        await self._ask(COMPACT, of_topic(topic))

    @call
    async def compaction_status(self, topic: str) -> dict[str, str]:
        """Return the result of the last compaction: ``status`` NOT_RUN, RUNNING, SUCCESS or ERROR,
        and ``lastError``; of several partitions, the worst result."""
        return dict(await self._ask(COMPACTION, of_topic(topic)))

    @call
    async def offload(self, topic: str, kept_bytes: int = 0) -> None:
        """Begin to move the ledgers of every partition to the archive, except the newest ones that
        have ``kept_bytes`` together.

        Raises `Conflict` while an offload runs, `Invalid` if the cluster has no archive.
        """
        await self._ask(OFFLOAD, of_topic(topic), {SIZE_THRESHOLD: kept_bytes}, body={})

    @call
    async def offload_status(self, topic: str) -> dict[str, Any]:
        """Return the result of the last offload: ``status`` NOT_RUN, RUNNING, SUCCESS or ERROR, and
        ``lastError``; of several partitions, the worst result."""
        return dict(await self._ask(OFFLOAD_STATUS, of_topic(topic)))

    @call
    async def unload(self, topic: str) -> None:
        """Stop the topic's partition actors in an orderly way. The next use starts them again."""
        await self._ask(UNLOAD, of_topic(topic))

    async def _partitions(self, topic: str) -> int:
        return int((await self._ask(PARTITIONS, of_topic(topic)))["partitions"])
