"""Lookups that never create a topic; for a missing topic they name the most similar topics."""

from __future__ import annotations

from velaray.client.core import Core
from velaray.client.enums import RegexSubscriptionMode
from velaray.client.exceptions import TopicNotFound, VelarayError
from velaray.client.similar import missing_topic
from velaray.events.ids import TopicName


async def partitions_of_existing(core: Core, topic: TopicName) -> int:
    """Return the number of a topic's partitions; 0 for a plain topic and for one partition.

    Raises `TopicNotFound` if the topic doesn't exist; the error names topics with a similar name.
    """
    try:
        return await core.partitions_of(str(topic), create=False)
    except TopicNotFound as error:
        raise TopicNotFound(
            f"{await _refusal(core, topic)}. Reading creates no topic: publish to it first, or run"
            f" `velaray topics create {topic.topic}`"
        ) from error


async def _refusal(core: Core, topic: TopicName) -> str:
    namespace = f"{topic.tenant}/{topic.namespace}"
    try:
        names = await core.retrying(
            f"listing the topics of {namespace}",
            lambda: core.lookup.topics_of(namespace, RegexSubscriptionMode.PersistentOnly),
        )
    except VelarayError as error:
        return f"there is no topic {topic}, and {namespace} has no list of topics: {error}"
    return missing_topic(topic, names)
