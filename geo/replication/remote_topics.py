"""Ensures that a replicated topic exists in the other cluster with the same partitions."""

from __future__ import annotations

from velaray.client.exceptions import TopicNotFound
from velaray.client.lookup import Lookup
from velaray.events.ids import TopicName
from velaray.geo.replication.remote_admin import Refused, RemoteAdmin, path_of
from velaray.geo.replication.replicator_settings import CannotReplicate, Remote

_EXISTS = 409


async def ensure_topic(lookup: Lookup, remote: Remote, topic: TopicName, partitions: int) -> None:
    """Ensure that ``topic`` has as many partitions there as here (0: not partitioned). Creates
    the topic or adds partitions if needed.

    Raises `CannotReplicate`, which says what to do, and what look-ups raise.
    """
    name = str(topic)
    try:
        there = await lookup.partitions_of(name, create=False)
    except TopicNotFound:
        there = await _create(lookup, remote, topic, partitions)
    if partitions > there > 0:
        await _ask(remote, "POST", f"{path_of(topic)}/partitions", partitions)
        there = await lookup.partitions_of(name, create=False)
    if there != partitions:
        raise CannotReplicate(
            f"{name} has {_shape(partitions)} here and {_shape(there)} in {remote.name}: give it "
            "the same number in both, or delete one of them"
        )


async def _create(lookup: Lookup, remote: Remote, topic: TopicName, partitions: int) -> int:
    if remote.admin_url:
        if partitions:
            await _ask(remote, "PUT", f"{path_of(topic)}/partitions", partitions)
        else:
            await _ask(remote, "PUT", path_of(topic), None)
    # Without an administrator the other cluster's policy decides.
    return await lookup.partitions_of(str(topic), create=not remote.admin_url)


def _shape(partitions: int) -> str:
    return f"{partitions} partitions" if partitions else "no partitions"


async def _ask(remote: Remote, method: str, path: str, body: int | None) -> None:
    try:
        await RemoteAdmin(remote).request(method, path, body)
    except Refused as error:
        if error.status != _EXISTS:
            raise
