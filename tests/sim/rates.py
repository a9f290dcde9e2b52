"""Runs with rates: policies that limit publishing and deliveries, and that change under load.

They limit, and change, nothing else: the checkers are those of ordinary runs. A message that a rate
loses, or holds back for ever, is found by them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

from tests.sim.administration import PREFIX
from tests.sim.cast import Cast
from tests.sim.cluster import ADMIN_PORT
from tests.sim.faults import STORM_S, make_faults
from tests.sim.http import NoAnswer, ask
from tests.sim.run import Outcome, World, quiet, run_world

NAMESPACE = f"{PREFIX}/namespaces/public/default"
PAUSE_S = 0.5
"""Between two attempts at a change."""


def _dispatch_rate(rng: Random) -> dict[str, Any]:
    rate = {
        "dispatchThrottlingRateInMsg": rng.choice([-1, 20, 60, 200]),
        "dispatchThrottlingRateInByte": rng.choice([-1, -1, 5_000, 20_000]),
        "ratePeriodInSecond": rng.choice([1, 1, 3]),
    }
    return {**rate, "relativeToPublishRate": True} if rng.random() < 0.2 else rate


def _publish_rate(rng: Random) -> dict[str, Any]:
    return {
        "publishThrottlingRateInMsg": rng.choice([-1, 20, 100]),
        "publishThrottlingRateInByte": rng.choice([-1, -1, 5_000]),
    }


RATES = {
    "dispatchRate": _dispatch_rate,
    "subscriptionDispatchRate": _dispatch_rate,
    "publishRate": _publish_rate,
}
"""How values of the policies are drawn. The lowest rates let everything through in the calm."""


def first_rates(rng: Random) -> Iterator[tuple[str, Any]]:
    """The policies that apply from the beginning."""
    for name, draw in RATES.items():
        if rng.random() < 0.7:
            yield name, draw(rng)


class RatedWorld(World):
    """Everything of one run with rates."""

    async def _set_policies(self, cast: Cast) -> None:
        await super()._set_policies(cast)
        rng = Random(f"{self._seed}/rates")
        for name, value in first_rates(rng):
            status, answer = await ask(ADMIN_PORT, "PUT", f"{NAMESPACE}/policies/{name}", value)
            assert status == 204, answer
        for topic, names in sorted(cast.subscriptions.items()):
            if cast.partitions.get(topic) and rng.random() < 0.5:
                own = {name: _dispatch_rate(rng) for name in sorted(names)}
                path = f"{PREFIX}/persistent/{topic}/policies/dispatchRateOfSubscriptions"
                status, answer = await ask(ADMIN_PORT, "PUT", path, own)
                assert status == 204, answer

    async def _carry_out(self) -> None:
        changing = self._loop.create_task(self._change_rates())
        await super()._carry_out()
        changing.cancel()  # a fault that lasts until the calm may keep a change from the catalog
        await asyncio.wait([changing])

    async def _change_rates(self) -> None:
        """Set and remove rates during the storm."""
        rng = Random(f"{self._seed}/changing rates")
        for at in sorted(rng.uniform(0.0, STORM_S) for _ in range(rng.randint(0, 6))):
            await asyncio.sleep(max(at - self._loop.time(), 0.0))
            name = rng.choice(list(RATES))
            value = RATES[name](rng) if rng.random() < 0.7 else None
            while not await self._changed(name, value):
                await asyncio.sleep(PAUSE_S)

    async def _changed(self, name: str, value: Any) -> bool:
        """Set or (None) remove a policy; whether it was answered."""
        method = "DELETE" if value is None else "PUT"
        try:
            status, _ = await ask(ADMIN_PORT, method, f"{NAMESPACE}/policies/{name}", value)
        except (NoAnswer, TimeoutError):
            return False
        if status == 204:
            self._history.add("rate", policy=name, value=value)
        return status == 204


def run_rates(seed: int, fault_count: int | None = None) -> Outcome:
    """Run ``seed`` with rates, and with its faults, or with the first ``fault_count`` of them."""
    faults = make_faults(seed)[:fault_count]
    with quiet():
        return replace(run_world(RatedWorld, seed, faults), rates=True)
