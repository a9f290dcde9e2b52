"""Chunks of messages, put into a topic one by one, small and in any order."""

from __future__ import annotations

from typing import Any

from velaray.actors.partition.machine import Chunk, Publish
from velaray.events.ids import ActorKind, TopicName
from velaray.wire.messages import build_entry
from velaray.wire.pulsar_pb2 import MessageMetadata


def append_chunk(cluster: Any, topic: str, uuid: str, number: int, chunks: int, data: bytes) -> Any:
    """Append chunk ``number`` of a message by a producer of its own; the topic's actor runs."""
    metadata = MessageMetadata(
        producer_name=uuid,
        sequence_id=0,
        publish_time=1,
        uuid=uuid,
        chunk_id=number,
        num_chunks_from_msg=chunks,
        total_chunk_msg_size=chunks * len(data),
    )
    name = TopicName.parse(topic)
    (key,) = (key for key in cluster.keys(ActorKind.PARTITION) if key.topic_name == name)
    command = Publish(
        uuid, 0, 0, 1, build_entry(metadata, data), False, Chunk(uuid, number, chunks)
    )
    return cluster.run(cluster.actor_system.actors[key].publishing.append(command))
