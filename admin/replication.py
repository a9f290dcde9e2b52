"""Routes of the admin interface for replication as a whole; velaray's own.

The statistics of a topic include its own replication under Pulsar's names.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from velaray.admin.binding import Route, body_of, given
from velaray.admin.http import actor_system_of, answer, ask_catalog
from velaray.broker.catalog.messages import Topic
from velaray.client.admin import clusters as operations
from velaray.events.ids import ActorKey, ActorKind, TopicName
from velaray.geo.replication.messages import GiveUpForeign, Replication, SettleForeign
from velaray.topology.fan_out import each

SURVEY_S = 10.0


async def status(request: web.Request) -> web.Response:
    """The replicators of ``?topic=``, of ``?namespace=`` or of the whole cluster.

    A namespace or the cluster lists only running partitions: passivated ones have nothing to
    replicate. The answer has one row for each partition and remote cluster.
    """
    topic = given(request, operations.OF_TOPIC)
    if topic is not None:
        found = await _of_topic(request, TopicName.parse(topic))
    else:
        found = await _of_all(request, given(request, operations.OF_NAMESPACE))
    return answer(
        [
            {"topic": str(key.topic_name), "cluster": cluster, **facts}
            for key, replicators in sorted(found.items(), key=lambda item: item[0].text())
            for cluster, facts in sorted(replicators.items())
        ]
    )


async def _of_topic(request: web.Request, topic: TopicName) -> dict[ActorKey, Any]:
    keys = await _keys(request, topic)
    actor_system = actor_system_of(request)
    answers = await each(keys, lambda key: actor_system.request(key, Replication()))
    return dict(zip(keys, answers, strict=True))


async def _keys(request: web.Request, topic: TopicName) -> list[ActorKey]:
    """The partition actors of a topic."""
    found = await ask_catalog(request, Topic(str(topic)))
    count = found["partitions"] if topic.partition < 0 else 0
    return ActorKey.of_partitions(topic, found["incarnation"], count)


async def _of_all(request: web.Request, namespace: str | None) -> dict[ActorKey, Any]:
    found = await actor_system_of(request).survey(Replication, SURVEY_S)
    return {
        key: replicators
        for key, replicators in found.items()
        if key.kind is ActorKind.PARTITION
        and replicators
        and namespace in (None, f"{key.tenant}/{key.namespace}")
    }


async def give_up(request: web.Request) -> web.Response:
    """Give up the incomplete transactions of ``cluster`` in partitions of ``topics``.

    The answer has one row for each partition: how many transactions were given up, and how many
    were released.
    """
    cluster, topics = body_of(request)["cluster"], body_of(request)["topics"]
    names = [TopicName.parse(topic) for topic in topics]
    keys = [key for name in names for key in await _keys(request, name)]
    actor_system = actor_system_of(request)
    # Release complete transactions first: a passivated partition may not have reported them yet.
    await each(keys, lambda key: actor_system.request(key, SettleForeign()))
    rows = await each(keys, lambda key: actor_system.request(key, GiveUpForeign(cluster)))
    told = zip(keys, rows, strict=True)
    return answer([{"topic": str(key.topic_name), **row} for key, row in told])


ROUTES: tuple[Route, ...] = (
    Route(operations.REPLICATION, status),
    Route(operations.GIVE_UP, give_up),
)
