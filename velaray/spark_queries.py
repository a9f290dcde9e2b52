"""Subscriptions and commit sequences that a Spark query keeps in the service, and their deletion.

The source of a query has a durable subscription on every partition that it reads, the *retention
mark* (`velaray.client.retention_marks`). Its sink has a commit sequence. The query's checkpoint
identifies both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from velaray.client.enums import ConsumerType, InitialPosition
from velaray.client.exceptions import ConsumerBusy, InvalidConfiguration
from velaray.events.ids import TopicName
from velaray.sync.client import Client

_SERIES = "spark"


@dataclass(frozen=True)
class Leftovers:
    """The (partition, subscription) pairs and commit sequences of a query in the service."""

    marks: Sequence[tuple[str, str]]
    series: Sequence[str]

    @staticmethod
    def of_checkpoint(folder: Path, sinks: Iterable[str] = ()) -> Leftovers:
        """The leftovers of the query whose checkpoint is in ``folder``.

        ``sinks`` are the options ``name`` of its sinks, if they have one. Raises
        `InvalidConfiguration` if the folder is no checkpoint of Spark's streaming.
        """
        try:
            query = json.loads((folder / "metadata").read_text(encoding="utf-8"))["id"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidConfiguration(f"{folder} isn't a checkpoint of a Spark query") from error
        marks = dict.fromkeys(
            (partition, source["subscription"])
            for source in _sources(folder)
            for partition in source["partitions"]
        )
        own = f"{_SERIES}/{query}"
        return Leftovers(list(marks), [own, *(f"{own}/{name}" for name in sinks)])

    @staticmethod
    def of_subscription(client: Client, name: str, topics: Iterable[str]) -> Leftovers:
        """The retention marks of this name on all partitions of these topics."""
        found = (client.get_topic_partitions(topic) for topic in _existing(client, topics))
        return Leftovers([(each, name) for names in found for each in names], [])

    def release(self, client: Client) -> None:
        """Delete all leftovers; those that are already deleted are skipped.

        The query must have stopped permanently: the messages that it hasn't read may be trimmed
        afterwards. Raises `ConsumerBusy` if it still runs; some of its leftovers may be deleted
        then.
        """
        there = set(_existing(client, [partition for partition, _ in self.marks]))
        for partition, subscription in self.marks:
            if str(TopicName.parse(partition).topic) in there:
                _unsubscribe(client, partition, subscription)
        for name in self.series:
            client.commit_sequence(name).forget()


def release(
    client: Client,
    *,
    checkpoint: str | Path | None = None,
    sinks: Iterable[str] = (),
    subscription: str | None = None,
    topics: Iterable[str] = (),
) -> Leftovers:
    """Delete the leftovers of a finished Spark query in the service; returns what was deleted.

    Give its ``checkpoint`` folder, and the options ``name`` of its ``sinks`` if they have one; or
    the name of its source's ``subscription`` and its ``topics``. Repeating the call is harmless.
    Raises `InvalidConfiguration`, and `ConsumerBusy` if the query still runs or has just stopped
    and its source is still connected: try again later.
    """
    if (checkpoint is None) == (subscription is None):
        raise InvalidConfiguration("give the query's checkpoint, or its subscription and topics")
    if checkpoint is not None:
        found = Leftovers.of_checkpoint(Path(checkpoint), sinks)
    else:
        found = Leftovers.of_subscription(client, subscription or "", topics)
    found.release(client)
    return found


def _sources(folder: Path) -> Iterator[dict[str, Any]]:
    """The offsets of velaray's sources in the newest offset file of the checkpoint."""
    logs = folder / "offsets"
    there = logs.iterdir() if logs.is_dir() else ()
    newest = max((int(each.name) for each in there if each.name.isdigit()), default=None)
    if newest is None:
        return
    # A version, metadata of the batch, then an offset for each source.
    for line in (logs / str(newest)).read_text(encoding="utf-8").splitlines()[2:]:
        found = json.loads(line) if line.startswith("{") else {}
        if {"subscription", "partitions"} <= found.keys():
            yield found


def _existing(client: Client, topics: Iterable[str]) -> list[str]:
    """The existing topics among ``topics``; a pattern never creates one."""
    names = dict.fromkeys(TopicName.parse(topic).topic for topic in topics)
    found = []
    for name in names:
        pattern = f"{name.tenant}/{name.namespace}/{re.escape(name.local)}"
        found += client.get_matching_topics(pattern)
    return found


def _unsubscribe(client: Client, partition: str, subscription: str) -> None:
    try:
        consumer = client.subscribe(
            partition,
            subscription,
            ConsumerType.Exclusive,
            receiver_queue_size=0,
            initial_position=InitialPosition.Latest,
        )
    except ConsumerBusy as error:
        raise ConsumerBusy(f"{subscription} on {partition} is in use: stop its query") from error
    consumer.unsubscribe()
