"""Transactions as an option of a run: their clients, on topics of their own.

All of it is drawn from a seed of its own, so that runs without it stay as they were.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.sim.administration import AdministratorScript, Deed
from tests.sim.cast import consuming
from tests.sim.compacting import TOPIC as COMPACTED_TOPIC
from tests.sim.compacting import make_compacting
from tests.sim.readers import ReaderScript
from tests.sim.transacting import DOMAIN, TellerScript, Transacting, TransactingScript
from tests.sim.transactions import AskingScript, Transacted
from tests.sim.transforming import WorkerScript, Working
from tests.sim.workload import ConsumerScript, ProducerScript, Producing, Shared
from velaray.client.enums import ConsumerType

COORDINATORS = 2
CHANCE = 0.4
"""The share of runs with transactions."""

WRITTEN = ("public/default/w0", "public/default/w1")
GONE = "public/default/g0"
"""Is deleted while transactions have messages in it; it is created again on use."""
SOURCE, RESULTS = "public/default/q0", "public/default/q1"
WORKERS = "q0-s"
ACCOUNTS = ("public/default/b0", "public/default/b1")

_KINDS = (
    ConsumerType.Exclusive,
    ConsumerType.Shared,
    ConsumerType.Failover,
    ConsumerType.KeyShared,
)


@dataclass
class TransactionCast:
    """The scripts by name: ``producers`` come to an end, ``consumers`` when the run is over."""

    partitions: dict[str, int] = field(default_factory=dict)
    subscriptions: dict[str, set[str]] = field(default_factory=dict)
    producers: dict[str, Any] = field(default_factory=dict)
    consumers: dict[str, Any] = field(default_factory=dict)
    readers: list[tuple[str, ReaderScript]] = field(default_factory=list)


def has_transactions(seed: int) -> bool:
    """Whether clients of this seed use transactions."""
    return Random(f"{seed}/transactions?").random() < CHANCE


def make_transaction_cast(seed: int, shared: Shared) -> TransactionCast | None:
    """That of a seed; most have none."""
    if not has_transactions(seed):
        return None
    rng = Random(f"{seed}/transactions")
    cast, transacted = TransactionCast(), Transacted(shared.history)
    written, transforms, bank = (rng.random() < chance for chance in (0.6, 0.5, 0.3))
    if written or not (transforms or bank):
        _add_writers(cast, seed, shared, transacted, rng)
    if transforms:
        _add_workers(cast, shared, transacted, rng)
    if bank:
        _add_bank(cast, shared, transacted, rng)
    cast.producers["xa0"] = AskingScript(shared, transacted, Random(rng.random()))
    return cast


def _add_writers(
    cast: TransactionCast, seed: int, shared: Shared, transacted: Transacted, rng: Random
) -> None:
    """Messages to several topics, which ordinary consumers and readers get."""
    topics = list(WRITTEN[: rng.randint(1, 2)])
    for topic in topics:
        cast.partitions[topic] = rng.choice([0, 0, 2])
        _add_consumers(cast, topic, shared, rng)
    deeds = _deeds(rng, topics)
    if rng.random() < 0.3:
        topics.append(GONE)
        cast.partitions[GONE] = 0
        deeds.insert(rng.randint(0, len(deeds)), Deed("delete topic", GONE))
    if make_compacting(seed, shared) is not None:
        plan = _writing(rng, "xk0", (COMPACTED_TOPIC,), keys=rng.choice([2, 5]))
        cast.producers[plan.name] = TransactingScript(
            plan, shared, transacted, Random(rng.random())
        )
    for number in range(rng.randint(1, 2)):
        plan = _writing(rng, f"xp{number}", tuple(topics))
        script = TransactingScript(plan, shared, transacted, Random(rng.random()))
        cast.producers[plan.name] = script
    if rng.random() < 0.5:
        name, queue = "xr0", rng.choice([1, 10, 1000])
        reader = ReaderScript(name, DOMAIN + WRITTEN[0], queue, shared, Random(rng.random()))
        cast.readers.append((WRITTEN[0], reader))
        cast.consumers[name] = reader
    if rng.random() < 0.5:
        _add_careless(cast, WRITTEN[0], shared, transacted, rng)
        deeds += _interference(rng, WRITTEN[0], "w0-careless")
    rng.shuffle(deeds)
    script = AdministratorScript(deeds, [], shared, Random(rng.random()))
    cast.producers["xa1"] = script


def _writing(rng: Random, name: str, topics: tuple[str, ...], keys: int = 0) -> Transacting:
    return Transacting(
        name=name,
        topics=topics,
        rounds=rng.randint(4, 16),
        overlap=rng.choice([1, 2, 4]),
        most=rng.choice([1, 3, 6]),
        batching=rng.random() < 0.5,
        later=0 if keys else rng.choice([0, 0, 150]),
        keys=keys,
    )


def _add_consumers(cast: TransactionCast, topic: str, shared: Shared, rng: Random) -> None:
    name = f"{topic[-2:]}-s0"
    kind = rng.choice(_KINDS[:3])
    cast.subscriptions.setdefault(topic, set()).add(name)
    for number in range(1 if kind is ConsumerType.Exclusive else rng.randint(1, 2)):
        plan = consuming(rng, f"{name}-c{number}", DOMAIN + topic, name, kind, alone=True)
        cast.consumers[plan.name] = ConsumerScript(plan, shared, Random(rng.random()))


def _add_careless(
    cast: TransactionCast, topic: str, shared: Shared, transacted: Transacted, rng: Random
) -> None:
    """A subscription that gets acknowledgements in transactions and others, and is moved."""
    name, kind = "w0-careless", rng.choice(_KINDS[:3])
    cast.subscriptions.setdefault(topic, set()).add(name)
    plan = _working(rng, topic, name, kind, to=None)
    plan = replace(plan, abort=35, abandon=20, careless=rng.choice([0, 30]))
    for number in range(1 if kind is ConsumerType.Exclusive else rng.randint(1, 3)):
        plan = replace(plan, name=f"xw{number}")
        cast.consumers[plan.name] = WorkerScript(plan, shared, transacted, Random(rng.random()))


def _deeds(rng: Random, topics: list[str]) -> list[Deed]:
    """What administrators do to topics that have messages of transactions."""
    deeds = []
    for _ in range(rng.randint(0, 3)):
        topic = rng.choice(topics)
        what = rng.choice(["unload", "reset", "skip", "look", "unload"])
        deeds.append(_deed(rng, what, topic, f"{topic[-2:]}-s0"))
    if rng.random() < 0.1:
        deeds.append(Deed("terminate", topics[-1]))
    return deeds


def _interference(rng: Random, topic: str, subscription: str) -> list[Deed]:
    kinds = ["reset", "skip", "skip all", "delete subscription", "delete subscription"]
    return [_deed(rng, rng.choice(kinds), topic, subscription) for _ in range(rng.randint(0, 3))]


def _deed(rng: Random, what: str, topic: str, subscription: str) -> Deed:
    if what in ("unload", "look"):
        return Deed(what, topic)
    return Deed(what, topic, subscription, rng.randint(1, 5) if what == "skip" else None)


def _working(
    rng: Random, topic: str, subscription: str, kind: ConsumerType, to: str | None
) -> Working:
    in_order = kind in (ConsumerType.Exclusive, ConsumerType.Failover)
    return Working(
        name="",
        topic=topic,
        subscription=subscription,
        kind=kind,
        to=to,
        most=rng.choice([1, 1, 3, 6]),
        queue=rng.choice([1, 3, 20, 1000]),
        batch_index=rng.random() < 0.7,
        cumulative=in_order and rng.random() < 0.5,
        batching=rng.random() < 0.5,
        abort=rng.choice([0, 20]),
        abandon=rng.choice([0, 15]),
    )


def _add_workers(
    cast: TransactionCast, shared: Shared, transacted: Transacted, rng: Random
) -> None:
    """Messages that become others, exactly once."""
    kind = rng.choice(_KINDS)
    by_key = kind is ConsumerType.KeyShared
    cast.partitions[SOURCE], cast.partitions[RESULTS] = rng.choice([0, 0, 2]), rng.choice([0, 2])
    cast.subscriptions[SOURCE] = {WORKERS}
    producing = Producing(
        name="q0-p0",
        topic=DOMAIN + SOURCE,
        count=rng.randint(10, 40),
        window=rng.choice([1, 4, 16]),
        batching=rng.random() < 0.6,
        timeout_ms=0,
        keys=rng.choice([1, 3, 8]) if by_key else 0,
        by_key=by_key,
    )
    cast.producers[producing.name] = ProducerScript(producing, shared, Random(rng.random()))
    plan = _working(rng, SOURCE, WORKERS, kind, to=RESULTS)
    shared.history.add("transforming", cumulative=plan.cumulative)
    for number in range(1 if kind is ConsumerType.Exclusive else rng.randint(1, 3)):
        plan = replace(plan, name=f"xq{number}")
        cast.consumers[plan.name] = WorkerScript(plan, shared, transacted, Random(rng.random()))


def _add_bank(cast: TransactionCast, shared: Shared, transacted: Transacted, rng: Random) -> None:
    """Accounts in two topics, between which money goes; readers count all of it."""
    for at, topic in enumerate(ACCOUNTS):
        cast.partitions[topic] = 0
        reader = ReaderScript(f"xb{at}", DOMAIN + topic, 1000, shared, Random(rng.random()))
        cast.readers.append((topic, reader))
        cast.consumers[f"xb{at}"] = reader
    for number in range(rng.randint(1, 3)):
        name, transfers = f"xt{number}", rng.randint(3, 12)
        cast.producers[name] = TellerScript(
            name, ACCOUNTS, transfers, shared, transacted, Random(rng.random())
        )
