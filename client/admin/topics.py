"""Administration of topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from velaray.client.admin.connection import Resource
from velaray.client.admin.errors import Conflict
from velaray.client.admin.paths import force_query, message_id, path_of, split, topic_path
from velaray.client.message_id import MessageId
from velaray.events.ids import TopicName


class Topics(Resource):
    """The topics of namespaces."""

    def __call__(self, namespace: str = "public/default") -> dict[str, int]:
        """Return the topics of ``tenant/namespace``: the number of partitions by name, 0 for a
        plain topic."""
        found: dict[str, int] = {}
        for text in self._connection.request("GET", path_of("persistent", *split(namespace))):
            name = TopicName.parse(text)
            found[str(name.topic)] = max(found.get(str(name.topic), 0), name.partition + 1)
        return found

    def create(
        self, topic: str, *, partitions: int = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic. Raises `Conflict` if it exists."""
        given = dict(properties or {})
        if partitions:
            body = {"partitions": partitions, "properties": given}
            self._connection.request("PUT", f"{topic_path(topic)}/partitions", body)
        else:
            self._connection.request("PUT", topic_path(topic), given)

    def delete(self, topic: str, *, force: bool = False) -> None:
        """Delete a topic with its messages and subscriptions.

        Raises `PreconditionFailed` while clients are connected, unless ``force``. Repeat a deletion
        that failed half-way to finish it.
        """
        query = force_query(force)
        try:
            self._connection.request("DELETE", topic_path(topic), query=query)
        except Conflict:
            self._connection.request("DELETE", f"{topic_path(topic)}/partitions", query=query)

    def undelete(self, topic: str) -> None:
        """Restore a deleted topic with its messages, subscriptions and policies.

        Raises `NotFound` unless it was deleted within the cluster's window for that (by default
        there is none), and `Conflict` if there is a newer topic with the name.
        """
        self._connection.request("POST", f"{topic_path(topic)}/undelete")

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic; 0 for a plain one."""
        return int(self._connection.request("GET", f"{topic_path(topic)}/partitions")["partitions"])

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions to a partitioned topic, so that it has ``partitions`` in all."""
        self._connection.request("POST", f"{topic_path(topic)}/partitions", partitions)

    def stats(self, topic: str) -> dict[str, Any]:
        """Return statistics; of a partitioned topic the sums, and those of each partition in
        ``partitions``."""
        kind = "partitioned-stats" if self.partitions(topic) > 0 else "stats"
        return dict(self._connection.request("GET", f"{topic_path(topic)}/{kind}"))

    def internal_stats(self, topic: str) -> dict[str, Any]:
        """Return ledgers and cursors; of a partitioned topic in ``partitions``."""
        kind = "partitioned-internalStats" if self.partitions(topic) > 0 else "internalStats"
        return dict(self._connection.request("GET", f"{topic_path(topic)}/{kind}"))

    def last_message_id(self, topic: str) -> MessageId:
        """Return the last entry of a plain topic or a partition; entry id -1 if there is none."""
        return message_id(self._connection.request("GET", f"{topic_path(topic)}/lastMessageId"))

    def terminate(self, topic: str) -> list[MessageId]:
        """Terminate a topic, so that it accepts no more messages. Return the last id of every
        partition, in order."""
        found = self._connection.request("POST", f"{topic_path(topic)}/terminate")
        if "ledgerId" in found:
            return [message_id(found)]
        return [message_id(found[number]) for number in sorted(found, key=int)]

    def compact(self, topic: str) -> None:
        """Begin to compact every partition of a topic. Raises `Conflict` while one is being
        compacted."""
        self._connection.request("PUT", f"{topic_path(topic)}/compaction")

    def compaction_status(self, topic: str) -> dict[str, str]:
        """Return the result of the last compaction: ``status`` NOT_RUN, RUNNING, SUCCESS or ERROR,
        and ``lastError``; of several partitions, the worst result."""
        return dict(self._connection.request("GET", f"{topic_path(topic)}/compaction"))

    def unload(self, topic: str) -> None:
        """Stop the topic's partition actors in an orderly way. The next use starts them again."""
        self._connection.request("PUT", f"{topic_path(topic)}/unload")
