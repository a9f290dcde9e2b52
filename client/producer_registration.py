"""The registration commands of a producer."""

from __future__ import annotations

from typing import Any

from velaray.client.exceptions import BrokerMetadataError, NotAllowedError, VelarayError
from velaray.client.options import ProducerOptions
from velaray.schemas import SchemaInfo
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.errors import ENCRYPTION_REQUIRED_IN
from velaray.wire.schemas import to_proto


class Registration:
    """Builds the registration commands of one producer, and stores its epochs."""

    def __init__(
        self,
        topic: str,
        producer_id: int,
        options: ProducerOptions[Any],
        schema: SchemaInfo | None,
        name_is_ours: bool,
        initial_subscription: str | None,
    ) -> None:
        """Whether the name is the user's.

        The service deletes other names when the producer is closed.
        """
        self._topic = topic
        self._producer_id = producer_id
        self._options = options
        self._schema = schema
        self._name_is_ours = name_is_ours and options.producer_name is not None
        self._initial_subscription = initial_subscription
        self._epoch = 0
        self._topic_epoch: int | None = None

    def command(self, name: str) -> pb.CommandProducer:
        """Build the command of the next attempt; with an empty ``name`` the service chooses one."""
        options = self._options
        register = pb.CommandProducer(
            topic=self._topic,
            producer_id=self._producer_id,
            epoch=self._epoch,
            user_provided_producer_name=self._name_is_ours,
            producer_access_mode=int(options.access_mode),  # type: ignore[arg-type]
        )
        self._epoch += 1
        if options.key_names:
            register.encrypted = True
        if self._schema is not None:
            register.schema.CopyFrom(to_proto(self._schema))
        if self._initial_subscription is not None:
            register.initial_subscription_name = self._initial_subscription
        if name:
            register.producer_name = name
        if self._topic_epoch is not None:
            register.topic_epoch = self._topic_epoch
        for key, value in (options.properties or {}).items():
            register.metadata.add(key=key, value=value)
        return register

    def answered(self, answer: pb.CommandProducerSuccess) -> None:
        """Store the epoch of an exclusive producer."""
        if answer.HasField("topic_epoch"):
            self._topic_epoch = answer.topic_epoch

    def leave_cluster(self) -> None:
        """Discard the epoch: each cluster counts its own epochs."""
        self._topic_epoch = None


def refused(error: BrokerMetadataError) -> VelarayError:
    """Return the error of a refused registration: `NotAllowedError` if the producer must encrypt,
    because no later attempt succeeds."""
    if ENCRYPTION_REQUIRED_IN in str(error):
        return NotAllowedError(str(error))
    return error
