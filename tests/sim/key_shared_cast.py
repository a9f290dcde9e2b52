"""The part of a cast that shares by key: on a topic of its own, with chances of its own."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

from tests.sim.workload import ConsumerScript, Consuming, ProducerScript, Producing, Shared
from velaray.aio import Client
from velaray.client.enums import ConsumerType, KeySharedMode
from velaray.client.exceptions import VelarayError
from velaray.client.policies import ConsumerKeySharedPolicy

if TYPE_CHECKING:
    from tests.sim.cast import Cast

KEYED = "public/default/shared-by-key"
SUBSCRIPTION = "by-key"
_STICKY = KeySharedMode.Sticky


class IntruderScript:
    """Requests hashes that other consumers have; releases them soon if they were free."""

    def __init__(self, policy: ConsumerKeySharedPolicy, shared: Shared, rng: Random) -> None:
        self._policy = policy
        self._shared = shared
        self._rng = rng

    async def run(self, client: Client) -> None:
        """Returns when the calm begins."""
        while not self._shared.draining.is_set():
            await asyncio.sleep(self._rng.random() * 3)
            try:
                consumer = await client.subscribe(
                    f"persistent://{KEYED}",
                    SUBSCRIPTION,
                    consumer_type=ConsumerType.KeyShared,
                    consumer_name="intruder",
                    key_shared_policy=self._policy,
                )
                await asyncio.sleep(self._rng.random() * 0.2)
                await consumer.close()
            except VelarayError as error:
                self._shared.history.add("intruder", error=f"{type(error).__name__}: {error}")


def add_key_shared(cast: Cast, shared: Shared, rng: Random) -> None:
    """Some runs have Key_Shared consumers."""
    if rng.random() < 0.5:
        return
    cast.partitions[KEYED] = rng.choice([0, 0, 2])
    cast.subscriptions[KEYED] = {SUBSCRIPTION}
    if rng.random() < 0.4:
        cast.limits[KEYED] = (rng.choice([0, 3, 12]), rng.choice([0, 6]))
    for number in range(rng.randint(1, 2)):
        name = f"by-key-p{number}"
        plan = Producing(
            name=name,
            topic=f"persistent://{KEYED}",
            count=rng.randint(20, 80),
            window=rng.choice([1, 4, 16]),
            batching=rng.random() < 0.5,
            timeout_ms=rng.choice([0, 30_000]),
            keys=rng.choice([1, 3, 8]),
            by_key=True,
        )
        cast.producers[name] = ProducerScript(plan, shared, Random(rng.random()))
    policies = _policies(rng, rng.choice([1, 2, 3, 3, 4]))
    queue, leave, away = (
        rng.choice([1, 3, 20, 1000]),
        rng.choice([0, 20, 80]),
        rng.choice([0, 3, 6]),
    )
    for number, keys in enumerate(policies):
        part = Consuming(
            name=f"by-key-c{number}",
            topic=f"persistent://{KEYED}",
            subscription=SUBSCRIPTION,
            kind=ConsumerType.KeyShared,
            queue=queue,
            batch_index=rng.random() < 0.5,
            nack=rng.choice([0, 50]),
            keep=rng.choice([0, 50, 300]),
            redeliver=0,
            leave=leave,
            seek=0,
            unsubscribe=0,
            cumulative=False,
            keys=keys,
            away=away if number else 0,  # without a subscription nothing is kept
        )
        cast.consumers[part.name] = ConsumerScript(part, shared, Random(rng.random()))
    sticky = policies[0].key_shared_mode == _STICKY
    if sticky and rng.random() < 0.5:
        intruder = ConsumerKeySharedPolicy(_STICKY, sticky_ranges=[(0, rng.randint(0, 65535))])
        cast.intruders["by-key-i"] = IntruderScript(intruder, shared, Random(rng.random()))


def _policies(rng: Random, count: int) -> list[ConsumerKeySharedPolicy]:
    """One for each consumer; together sticky ones have every hash."""
    if rng.random() < 0.75:
        return [ConsumerKeySharedPolicy(allow_out_of_order_delivery=rng.random() < 0.2)] * count
    borders = [0, *sorted(rng.sample(range(1, 65535), count - 1)), 65536]
    return [
        ConsumerKeySharedPolicy(_STICKY, sticky_ranges=[(first, end - 1)])
        for first, end in pairwise(borders)
    ]
