"""Which systems there are, by name, and in which ways their clients are used."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from benchmarks import install
from benchmarks.contract import Absent, Peer

# Module, class and arguments. Imported in the peer's own process, when it is started: each
# has a client library that others needn't have, and that would cost the others memory.
_SYSTEMS: dict[str, tuple[str, str, tuple[Any, ...]]] = {
    "velaray": ("velaray_cluster", "VelarayCluster", ("always",)),
    "velaray-relaxed": ("velaray_cluster", "VelarayCluster", ("interval",)),
    "redis-always": ("redis_streams", "RedisStreams", ("always",)),
    "redis-everysec": ("redis_streams", "RedisStreams", ("everysec",)),
    "nats": ("nats_jetstream", "NatsJetStream", (False,)),
    "nats-sync": ("nats_jetstream", "NatsJetStream", (True,)),
    "rabbitmq": ("rabbitmq", "RabbitMq", ()),
    "kafka": ("kafka", "Kafka", (False,)),
    "kafka-flush": ("kafka", "Kafka", (True,)),
    "pulsar": ("pulsar_standalone", "PulsarStandalone", ()),
    "ray-queue": ("ray_queue", "RayQueue", ()),
}
NAMES = tuple(_SYSTEMS)
_CLIENTS: dict[str, tuple[str, ...]] = {
    "velaray": ("pulsar", "pyarrow"),
    "redis": ("redis",),
    "nats": ("nats",),
    "rabbitmq": ("pika", "aio_pika"),
    "kafka": ("confluent_kafka",),
    "pulsar": ("pulsar",),
}
_EXTRA = {module for modules in _CLIENTS.values() for module in modules}


def matching(given: str) -> list[str]:
    """Systems called ``given``, or of its family: ``redis`` are redis-always and -everysec."""
    return [name for name in NAMES if name == given or name.startswith(f"{given}-")]


def check(name: str) -> None:
    """Raise `Absent` if a system's client or server isn't there; without starting anything."""
    family = name.split("-")[0]
    for module in _CLIENTS.get(family, ()):
        if find_spec(module) is None:
            raise _no_client(module)
    install.check(family)


def _no_client(module: str) -> Absent:
    return Absent(f"{module} isn't installed: pip install -e '.[bench]'")


def start(name: str) -> AbstractContextManager[Peer]:
    """The system of this name; it runs within the context.

    Raises `Absent` if its client isn't installed; entering the context raises it, too.
    """
    module, kind, arguments = _SYSTEMS[name]
    try:
        found = import_module(f"benchmarks.systems.{module}")
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        raise _no_client(error.name) from error
    make: Callable[..., AbstractContextManager[Peer]] = getattr(found, kind)
    return make(*arguments)
