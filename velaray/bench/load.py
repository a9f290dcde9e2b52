"""The load that a run of ``velaray bench`` applies."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from velaray.client.enums import BatchingType, ConsumerType, InitialPosition

STAMP_SIZE = 16
"""Bytes at the start of each message that say which run it is of, and when it was intended."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """Topics, clients, messages and the pace. Numbers of producers are for each topic, numbers of
    consumers for each subscription."""

    topic: str
    topics: int = 1
    """Several topics are called TOPIC-0, TOPIC-1 and so on."""
    producers: int = 1
    consumers: int = 1
    subscription: str = "bench"
    subscriptions: int = 1
    """Several subscriptions are called SUBSCRIPTION-0, SUBSCRIPTION-1 and so on."""
    kind: ConsumerType = ConsumerType.Exclusive
    start: InitialPosition = InitialPosition.Latest
    rate: float | None = None
    """Messages a second of all producers (open loop); None: as fast as receipts allow (closed)."""
    in_flight: int = 1000
    """The most messages of a producer that wait for receipts."""
    size: int = 1024
    keys: int = 0
    batching: BatchingType | None = BatchingType.Default
    batch_messages: int = 1000
    batch_bytes: int = 128 << 10
    batch_delay_ms: int = 1
    values_per_call: int = 0
    """How many messages a call of `send_many` has; 0: messages are sent one by one."""
    duration_s: float | None = None
    messages: int | None = None
    """The end: seconds of sending after the warm-up, or messages of all producers with it."""
    warmup_s: float = 1.0
    interval_s: float = 10.0

    @property
    def topic_names(self) -> list[str]:
        """The topics."""
        return _numbered(self.topic, self.topics)

    @property
    def subscription_names(self) -> list[str]:
        """The subscriptions of each topic."""
        return _numbered(self.subscription, self.subscriptions)

    @property
    def receiving(self) -> bool:
        """Whether there are consumers."""
        return self.consumers > 0

    @property
    def sending(self) -> bool:
        """Whether there are producers."""
        return self.producers > 0

    def describe(self) -> dict[str, object]:
        """The load as facts for a report."""
        shown = {
            "loop": "closed" if self.rate is None else "open",
            "kind": self.kind.name,
            "start": self.start.name,
            "batching": "none" if self.batching is None else self.batching.name,
        }
        return {**asdict(self), **shown}


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}-{number}" for number in range(count)]
