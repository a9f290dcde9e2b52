"""The administrators of a run, over HTTP: every change is repeated until it's answered.

Like the other workloads this one judges nothing. The history gets the beginning and the end of
every step, and what it means for others: ``seek`` and ``sought`` around what moves or deletes a
subscription, as for consumers that seek. A step is doubtful if an attempt at it got no answer:
that attempt may still be carried out later.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.sim.cluster import ADMIN_PORT
from tests.sim.http import NoAnswer, ask
from tests.sim.workload import Shared
from velaray.aio import Client

PREFIX = "/admin/v2"
NAMESPACE = "public/staff"
_TRY_AGAIN = (500, 503, 507)


@dataclass(frozen=True)
class Deed:
    """One step: what, on which topic (without domain) and subscription, with what value."""

    what: str
    topic: str = ""
    subscription: str = ""
    value: Any = None


def _request(deed: Deed) -> tuple[str, str, Any]:
    topic = f"{PREFIX}/persistent/{deed.topic}"
    one = f"{topic}/subscription/{deed.subscription}"
    policy = f"{PREFIX}/namespaces/{NAMESPACE}/messageTTL"
    many = "/partitions" if deed.value else ""
    requests = {
        "create namespace": ("PUT", f"{PREFIX}/namespaces/{NAMESPACE}", {}),
        "set policy": ("POST", policy, deed.value),
        "remove policy": ("DELETE", policy, None),
        "read policy": ("GET", policy, None),
        "create topic": ("PUT", f"{topic}{many}", deed.value or {}),
        "delete topic": ("DELETE", f"{topic}{many}?force=true", None),
        "list topics": ("GET", f"{PREFIX}/namespaces/{NAMESPACE}/topics", None),
        "grow": ("POST", f"{topic}/partitions", deed.value),
        "terminate": ("POST", f"{topic}/terminate{many}", None),
        "unload": ("PUT", f"{topic}/unload", None),
        "look": ("GET", f"{topic}/{'partitioned-stats' if deed.value else 'stats'}", None),
        "create subscription": ("PUT", one, {"ledgerId": -1, "entryId": -1}),
        "delete subscription": ("DELETE", f"{one}?force=true", None),
        "list subscriptions": ("GET", f"{topic}/subscriptions", None),
        "skip": ("POST", f"{one}/skip/{deed.value}", None),
        "skip all": ("POST", f"{one}/skip_all", None),
        "reset": ("POST", f"{one}/resetcursor", {"ledgerId": -1, "entryId": -1}),
    }
    return requests[deed.what]


class AdministratorScript:
    """Makes one change after the other, at times of its own; the last ones in the calm."""

    def __init__(self, deeds: list[Deed], last: list[Deed], shared: Shared, rng: Random) -> None:
        self._deeds = deeds + last
        self._hurried = len(deeds)
        self._shared = shared
        self._rng = rng
        self._done = 0
        self._begun = -1

    async def run(self, client: Client) -> None:
        """Returns when all is done."""
        while self._done < len(self._deeds):
            if self._done >= self._hurried:
                await self._shared.draining.wait()
            elif not self._shared.draining.is_set():
                await asyncio.sleep(self._rng.random() * 24.0 / self._hurried)
            await self._do(self._deeds[self._done])
            self._done += 1

    async def _do(self, deed: Deed) -> None:
        history = self._shared.history
        moves = deed.what in ("reset", "delete subscription")
        doubtful = self._begun == self._done  # it was under way when this process died
        self._begun = self._done
        details = {"what": deed.what, "topic": deed.topic, "subscription": deed.subscription}
        if not doubtful:
            history.add("admin", **details, value=deed.value)
            if moves:
                history.add("seek", subscription=deed.subscription, to="by an administrator")
        while True:
            try:
                status, answer = await ask(ADMIN_PORT, *_request(deed))
                if status not in _TRY_AGAIN:
                    break
                history.add("admin again", **details, status=status, answer=answer)
            except NoAnswer as error:
                history.add("admin again", **details, error=str(error))
            doubtful = True
            await asyncio.sleep(1.0)
        ended = {"value": deed.value, "status": status, "answer": answer, "doubtful": doubtful}
        history.add("admin done", **details, **ended)
        if moves and not doubtful:
            reset = deed.what == "reset" and status < 300
            history.add("sought", subscription=deed.subscription, reset=reset)
