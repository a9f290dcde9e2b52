"""The clients of a run and their parts, generated from the seed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.sim.administration import NAMESPACE, AdministratorScript, Deed
from tests.sim.key_shared_cast import IntruderScript, add_key_shared
from tests.sim.readers import ReaderScript
from tests.sim.restarting import RestartingScript
from tests.sim.trimming import make_plan
from tests.sim.workload import (
    PATTERN,
    ConsumerScript,
    Consuming,
    ProducerScript,
    Producing,
    Shared,
)
from velaray.client.enums import ConsumerType

_TYPES = (ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.Failover)
DOOMED = "public/default/d0"
"""The topic that administrators delete under load; it is created again on use."""


@dataclass
class Cast:
    """The scripts of a run by name, and what must be there before they begin."""

    partitions: dict[str, int] = field(default_factory=dict)
    subscriptions: dict[str, set[str]] = field(default_factory=dict)
    producers: dict[str, ProducerScript] = field(default_factory=dict)
    consumers: dict[str, ConsumerScript] = field(default_factory=dict)
    readers: dict[str, tuple[str, ReaderScript]] = field(default_factory=dict)
    administrators: dict[str, AdministratorScript] = field(default_factory=dict)
    kept: int = 0
    """How many of 1000 messages consumers leave for the end, which makes many holes; 0: few."""
    intruders: dict[str, IntruderScript] = field(default_factory=dict)
    limits: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Messages that a consumer, and a subscription, may hold un-acknowledged; by topic."""


def make_cast(seed: int, shared: Shared) -> Cast:
    """The cast of a seed."""
    rng = Random(f"{seed}/workload")
    cast = Cast()
    if Random(f"{seed}/gaps").random() < 0.25:
        cast.kept = 400
    topics = [f"public/default/t{number}" for number in range(rng.randint(1, 2))]
    for topic in topics:
        cast.partitions[topic] = rng.choice([0, 0, 0, 2, 3])
        for number in range(rng.randint(1, 2)):
            _add_subscription(cast, topic, f"{topic[-2:]}-s{number}", shared, rng, seed)
    if rng.random() < 0.2:
        several: Any = tuple(f"persistent://{topic}" for topic in topics)
        if rng.random() < 0.5:
            several = f"{PATTERN}persistent://public/default/t.*"
        _add_subscription(cast, several, "several", shared, rng, seed)
    if rng.random() < 0.2:
        topics.append(DOOMED)
        cast.partitions[DOOMED] = 0
        _add_subscription(cast, DOOMED, "d0-s0", shared, rng, seed)
    for topic in topics:
        for _ in range(rng.randint(1, 2)):
            name = f"p{len(cast.producers)}"
            plan = _producing(rng, name, topic)
            later = Random(f"{seed}/{name}/later").choice([0, 0, 0, 150])
            plan = replace(plan, later=later)
            cast.producers[name] = ProducerScript(plan, shared, Random(rng.random()))
    lasting = [topic for topic in topics if topic != DOOMED]
    if rng.random() < 0.4:
        topic, queue = rng.choice(lasting), rng.choice([1, 10, 1000])
        reader = ReaderScript("r0", f"persistent://{topic}", queue, shared, Random(rng.random()))
        cast.readers["r0"] = (topic, reader)
    if DOOMED in topics or rng.random() < 0.5:
        deeds = _deeds(rng, cast, DOOMED in topics)
        last = [Deed("list topics"), Deed("read policy")]
        last += [Deed("list subscriptions", topic) for topic in lasting]
        script = AdministratorScript(deeds, last, shared, Random(rng.random()))
        cast.administrators["a0"] = script
    if make_plan(seed) is not None:
        mover = Random(f"{seed}/mover")
        moves = [_move_back(mover, lasting) for _ in range(mover.randint(0, 5))]
        script = AdministratorScript(moves, [], shared, Random(mover.random()))
        cast.administrators["a1"] = script
    add_key_shared(cast, shared, Random(f"{seed}/key-shared"))
    restarting = Random(f"{seed}/restarting")
    if restarting.random() < 0.3:
        plan = _producing(restarting, "n0", restarting.choice(lasting))
        plan = replace(plan, keys=0)
        cast.producers["n0"] = RestartingScript(plan, shared, Random(restarting.random()))
    return cast


def _move_back(rng: Random, topics: list[str]) -> Deed:
    """A cursor goes back to the beginning while ledgers are trimmed."""
    topic = rng.choice(topics)
    return Deed("reset", topic, f"{topic[-2:]}-s{rng.randrange(2)}")


def _add_subscription(
    cast: Cast, topic: Any, name: str, shared: Shared, rng: Random, seed: int
) -> None:
    kind = rng.choice(_TYPES)
    if isinstance(topic, str) and not topic.startswith(PATTERN):
        cast.subscriptions.setdefault(topic, set()).add(name)
        topic = f"persistent://{topic}"
        alone = True
    else:
        alone = False
    for _ in range(1 if kind is ConsumerType.Exclusive else rng.randint(1, 3)):
        consumer = f"c{len(cast.consumers)}"
        plan = consuming(rng, consumer, topic, name, kind, alone)
        if plan.cumulative:
            plan = _asking_again(plan, seed)
        elif cast.kept:
            plan = replace(plan, keep=cast.kept, nack=0, redeliver=0, leave=2)
        cast.consumers[consumer] = ConsumerScript(plan, shared, Random(rng.random()))


def _asking_again(plan: Consuming, seed: int) -> Consuming:
    """The same plan with redelivery; its own random source, so old seeds give the same runs."""
    rng = Random(f"{seed}/{plan.name}/again")
    return replace(plan, nack=rng.choice([0, 0, 50]), redeliver=rng.choice([0, 0, 20]))


def consuming(
    rng: Random, name: str, topic: Any, subscription: str, kind: ConsumerType, alone: bool
) -> Consuming:
    """A consumer's part; ``alone``: its subscription is of one topic."""
    shared = kind is ConsumerType.Shared
    cumulative = not shared and rng.random() < 0.5
    again = 0 if cumulative else 1
    return Consuming(
        name=name,
        topic=topic,
        subscription=subscription,
        kind=kind,
        queue=rng.choice([1, 3, 20, 1000]),
        batch_index=rng.random() < 0.5,
        nack=again * rng.choice([0, 50]),
        keep=rng.choice([0, 50]),
        redeliver=again * rng.choice([0, 20]),
        leave=rng.choice([0, 20]),
        seek=alone * (not shared) * rng.choice([0, 0, 20]),
        unsubscribe=alone * (kind is ConsumerType.Exclusive) * rng.choice([0, 0, 10]),
        cumulative=cumulative,
    )


def _producing(rng: Random, name: str, topic: str) -> Producing:
    return Producing(
        name=name,
        topic=f"persistent://{topic}",
        count=rng.randint(10, 60),
        window=rng.choice([1, 4, 16]),
        batching=rng.random() < 0.5,
        timeout_ms=rng.choice([0, 30_000]),
        keys=rng.choice([0, 0, 3]),
        doomed=topic == DOOMED,
    )


def _deeds(rng: Random, cast: Cast, doomed: bool) -> list[Deed]:
    """Some work in a namespace of the administrator's own, some among the clients' topics."""
    topics = [topic for topic in cast.partitions if topic != DOOMED]
    deeds = [Deed("create namespace")]
    for number in range(rng.randint(0, 3)):
        mine = f"{NAMESPACE}/a{number}"
        parts = rng.choice([0, 2])
        deeds.append(Deed("create topic", mine, value=parts))
        if parts and rng.random() < 0.5:
            deeds.append(Deed("grow", mine, value=parts + 1))
        deeds.append(Deed("list topics"))
        if rng.random() < 0.7:
            deeds += [Deed("delete topic", mine, value=parts), Deed("list topics")]
    for _ in range(rng.randint(0, 2)):
        deeds += [Deed("set policy", value=rng.randint(1, 1000)), Deed("read policy")]
        if rng.random() < 0.3:
            deeds += [Deed("remove policy"), Deed("read policy")]
    others: list[list[Deed]] = []
    for _ in range(rng.randint(1, 5)):
        topic = rng.choice(topics)
        others.append(_interference(rng, topic, cast.partitions[topic]))
    if doomed:
        others += [[Deed("delete topic", DOOMED)] for _ in range(rng.randint(1, 2))]
    rng.shuffle(others)
    for several in others:
        at = rng.randint(1, len(deeds))
        deeds[at:at] = several
    if rng.random() < 0.15:
        topic = rng.choice(topics)
        deeds.append(Deed("terminate", topic, value=cast.partitions[topic]))
    return deeds


def _interference(rng: Random, topic: str, partitions: int) -> list[Deed]:
    subscription = f"{topic[-2:]}-s0"
    match rng.randrange(8):
        case 0:
            return [Deed("skip", topic, subscription, rng.randint(1, 5))]
        case 1:
            return [Deed("skip all", topic, subscription)]
        case 2:
            return [Deed("reset", topic, subscription)]
        case 3:
            return [Deed("unload", topic)]
        case 4:
            return [Deed("delete subscription", topic, subscription)]
        case 5 if partitions:
            return [Deed("grow", topic, value=partitions + 1)]
        case 6:
            return [Deed("look", topic, value=partitions)]
    mine = f"x{rng.randrange(3)}"
    return [
        Deed("create subscription", topic, mine),
        Deed("list subscriptions", topic),
        Deed("delete subscription", topic, mine),
        Deed("list subscriptions", topic),
    ]
