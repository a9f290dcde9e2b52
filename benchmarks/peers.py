"""What is compared: systems that keep messages, each behind the client its users take."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import ClassVar, Protocol

from benchmarks.redis_peer import RedisPeer, redis_absence
from benchmarks.velaray_peer import VelarayPeer

OnReceipt = Callable[[], None]
OnMessage = Callable[[bytes], None]


class Latency(Protocol):
    """A producer and a consumer that are connected at once; used by one sending thread."""

    def send(self, payload: bytes, on_receipt: OnReceipt) -> None:
        """Send one message by itself; ``on_receipt`` is called when it is durable."""
        ...


class Peer(Protocol):
    """A running system with one topic and one subscription. Ends with its context."""

    name: str
    settings: ClassVar[dict[str, str]]

    def servers(self) -> Iterable[int]:
        """The processes that serve the topic."""
        ...

    def publish(self, payload: bytes, seconds: float, batched: bool) -> int:
        """Publish for about ``seconds``, wait for every receipt; returns how many it were."""
        ...

    def drain(self, count: int) -> None:
        """Receive and acknowledge ``count`` messages, each one, until the server has it all."""
        ...

    def latency(self, on_message: OnMessage) -> AbstractContextManager[Latency]:
        """Connect both ends; what arrives is handed to ``on_message`` and acknowledged."""
        ...


_PEERS: dict[str, Callable[[], AbstractContextManager[Peer]]] = {
    "velaray": VelarayPeer,
    "redis": RedisPeer,
}
NAMES = tuple(_PEERS)


def start(name: str) -> AbstractContextManager[Peer]:
    """The peer of this name; it runs within the context."""
    return _PEERS[name]()


def absence(name: str) -> str | None:
    """Why this peer can't run here; None if it can."""
    return redis_absence() if name == "redis" else None
