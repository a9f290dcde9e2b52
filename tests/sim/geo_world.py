"""Everything of one run of several clusters: faults, clients that move, calm, checks."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from tests.sim.administration import PREFIX
from tests.sim.again import confirmed_parts_hold
from tests.sim.checkers import (
    Evidence,
    acknowledged_messages_are_stored,
    confirmed_acks_hold,
    judge,
    nobody_is_sent_away,
    permits_are_kept,
    producers_keep_their_order,
    refused_messages_are_not_stored,
)
from tests.sim.clients import ClientProcess, Script
from tests.sim.cluster import SimCluster, Site
from tests.sim.geo_cast import FOLLOWED, OWN, TOPIC, GeoPlan, make_household
from tests.sim.geo_checkers import (
    GeoEvidence,
    Glimpse,
    Probe,
    Stored,
    Switch,
    judge_geo,
    local_messages,
)
from tests.sim.geo_faults import GeoFault, carry_out_geo
from tests.sim.geo_history import GeoHistory
from tests.sim.geo_logs import Seen, look
from tests.sim.geo_progress import SentProgress, send_again
from tests.sim.http import NoAnswer, ask
from tests.sim.later import delayed_messages_are_not_early
from tests.sim.loop import SimLoop
from tests.sim.network import Network
from tests.sim.stored import audit, expected_journals
from tests.sim.trimming import Plan
from tests.support.by_name import call_by_name
from velaray.actors.catalog.state import Progress
from velaray.events.ids import ActorKey
from velaray.geo.replication.replicator_settings import Remote
from velaray.wire.replication import REPLICATED_SUBSCRIPTION

CALM_S = 240.0
"""The virtual seconds without faults within which everything must be replicated."""
LATENCY_S = 0.002
_AUDITS = 5
_NAMESPACE = "public/default"

OF_ONE_CLUSTER = (
    acknowledged_messages_are_stored,
    refused_messages_are_not_stored,
    permits_are_kept,
    confirmed_acks_hold,
    confirmed_parts_hold,
    nobody_is_sent_away,
    delayed_messages_are_not_early,
)
"""Invariants of each cluster by itself."""


_RULES = {
    "_lacking": "everything_gets_everywhere",
    "_unacknowledged": "everything_is_drained",
    "_behind": "the_new_cluster_catches_up",
}
"""What it means that something is left."""


class StuckRun(AssertionError):
    """Something that must come to an end doesn't."""


@dataclass
class _Processes:
    """The client processes of a cluster, with their tasks."""

    producers: dict[ClientProcess, asyncio.Task[Any]] = field(default_factory=dict)
    consumers: dict[ClientProcess, asyncio.Task[Any]] = field(default_factory=dict)
    own: dict[ClientProcess, asyncio.Task[Any]] = field(default_factory=dict)

    def all(self) -> list[ClientProcess]:
        """Every process."""
        return [*self.producers, *self.consumers, *self.own]


class GeoWorld:
    """Clusters, clients, and what becomes of them."""

    def __init__(
        self,
        loop: SimLoop,
        seed: int,
        faults: list[GeoFault],
        history: GeoHistory,
        plan: GeoPlan,
        sent: SentProgress,
    ) -> None:
        """``sent`` is the progress that replicators have sent so far."""
        network = Network(loop, Random(f"{seed}/geo/network"), LATENCY_S)
        self.clusters = {
            name: SimCluster(
                loop,
                f"{seed}/{name}",
                history,
                site=Site(name, number, network),
                plan=Plan(plan.maintenance_s, minutes=0, megabytes=0, ttl_s=0, quota=None),
            )
            for number, name in enumerate(plan.clusters, 1)
        }
        self._loop = loop
        self._seed = seed
        self._rng = Random(f"{seed}/geo/world")
        self._faults = faults
        self._history = history
        self._plan = plan
        self._homes = {name: make_household(seed, plan, name, history) for name in plan.clusters}
        self._processes = {name: _Processes() for name in plan.clusters}
        self._problems: list[str] = []
        self._stage = "starting"
        self._deadline = float("inf")
        self._switches: list[Switch] = []
        self._logs: dict[tuple[str, str], list[Stored]] = {}
        self._acked: dict[tuple[str, str, str], frozenset[str]] = {}
        self._sent = sent
        self._probes: list[Probe] = []
        self._glimpses: list[Glimpse] = []
        self._missed: dict[tuple[str, str, str], frozenset[str]] = {}

    # -- the verdict -----------------------------------------------------------------

    def problems(self) -> list[str]:
        """The faults of the run."""
        found = [text for cluster in self.clusters.values() for text in cluster.failures]
        found += self._problems
        if self._stage != "over":
            found.append(f"the run got stuck while {self._stage}")
            return found
        for name, cluster in self.clusters.items():
            if not cluster.lost:
                found += [f"{name}: {text}" for text in self._judge_alone(name)]
        return found + judge_geo(self._evidence())

    def _judge_alone(self, name: str) -> list[str]:
        view = self._history.view(name)
        logs = {topic: log for (cluster, topic), log in self._logs.items() if cluster == name}
        all_of = {t: {each.place: list(each.contents) for each in log} for t, log in logs.items()}
        own = {
            topic: {each.place: list(each.contents) for each in log if each.origin == name}
            for topic, log in logs.items()
        }
        found = judge(Evidence(view, all_of), OF_ONE_CLUSTER)
        return found + judge(Evidence(view, own), (producers_keep_their_order,))

    def _evidence(self) -> GeoEvidence:
        lost = {name for name, cluster in self.clusters.items() if cluster.lost}
        names = self._plan.clusters
        ways = [(one, other) for one in names for other in names if one != other]
        return GeoEvidence(
            history=self._history,
            logs=self._logs,
            acked={key: acked for key, acked in self._acked.items() if key[0] not in lost},
            ways=[way for way in ways if not lost.intersection(way)],
            cut_off=[(one, other) for one, other in ways if one in lost and other not in lost],
            missed=self._never_had(),
            followed=frozenset({FOLLOWED}),
            switches=self._switches,
            probes=self._probes,
            heard=self._sent.heard,
            glimpses=self._glimpses,
        )

    def _never_had(self) -> dict[tuple[str, str, str], frozenset[str]]:
        """Messages from before a subscription. Snapshots don't replicate them: a mark includes
        the messages from before the subscription in any cluster."""
        found = dict(self._missed)
        for (_, topic, name), missed in self._missed.items():
            if self._plan.snapshots and name == FOLLOWED:
                for cluster in self._plan.clusters:
                    known = found.get((cluster, topic, name), frozenset())
                    found[cluster, topic, name] = known | missed
        return found

    # -- the run ---------------------------------------------------------------------

    async def live(self) -> None:
        """The whole run."""
        for step in (self._found, self._prepare):
            for cluster in self.clusters.values():
                await step(cluster)
        proxies = [
            self._loop.create_task(each.keep_proxy_open()) for each in self.clusters.values()
        ]
        self._begin_all()
        moving = self._loop.create_task(self._move())
        self._stage = "in the storm"
        await carry_out_geo(self.clusters, self._faults, self._seed)
        await asyncio.sleep(max(2.0, self._plan.switch_at + 1.0 - self._loop.time()))
        await self._calm()
        try:
            await self._come_to_an_end(moving)
        except StuckRun as error:
            self._problems.append(str(error))
            return
        for proxy in proxies:
            proxy.cancel()
        await self._post_mortem()
        self._stage = "over"

    async def _found(self, cluster: SimCluster) -> None:
        catalog, names = ActorKey.catalog(), list(self._plan.clusters)
        call = partial(call_by_name, cluster.admin)
        await cluster.open_proxy()
        await call(catalog, "bootstrap", _named(cluster))
        for other in self.clusters.values():
            if other is not cluster:
                progress = Progress.SNAPSHOTS if self._plan.snapshots else Progress.EXACT
                named = {**_named(other), "progress": str(progress)}
                await call(catalog, "register_cluster", named)
        await call(catalog, "update_tenant", {"tenant": "public", "allowed_clusters": names})
        topic = {"topic": f"persistent://{TOPIC}", "partitions": self._plan.partitions}
        await call(catalog, "create_topic", topic)

    async def _prepare(self, cluster: SimCluster) -> None:
        catalog, names = ActorKey.catalog(), list(self._plan.clusters)
        call = partial(call_by_name, cluster.admin)
        value = json.dumps(names).encode()
        policy = {"namespace": _NAMESPACE, "name": "replication", "value": value}
        await call(catalog, "set_policy", policy)
        if self._plan.made_before:
            path = f"{PREFIX}/persistent/{TOPIC}/subscription/{FOLLOWED}"
            properties = {REPLICATED_SUBSCRIPTION: "true"}
            beginning = {"ledgerId": -1, "entryId": -1, "properties": properties}
            status, answer = await ask(cluster.config.admin_port, "PUT", path, beginning)
            assert status == 204, answer

    def _begin_all(self) -> None:
        first = self._plan.clusters[0]
        both = self._plan.scenario == "both"
        for name, home in self._homes.items():
            mine = self._processes[name]
            mine.producers = self._begin(name, home.producers)
            mine.own = self._begin(name, home.own)
            if name == first or (both and name == self._plan.clusters[1]):
                mine.consumers = self._begin(name, home.consumers)
        if self._plan.third_down:
            third = self.clusters[self._plan.clusters[2]]
            self._loop.call_later(1.0 + 3.0 * self._rng.random(), self._lose, third)

    def _begin(
        self, cluster: str, scripts: Mapping[str, Script]
    ) -> dict[ClientProcess, asyncio.Task[Any]]:
        processes = [
            ClientProcess(self.clusters[cluster], name, script, Random(f"{self._seed}/{name}"))
            for name, script in scripts.items()
        ]
        return {process: self._loop.create_task(process.run()) for process in processes}

    async def _calm(self) -> None:
        self._history.add("calm")
        first = self._plan.clusters[0]
        for name, cluster in self.clusters.items():
            if self._plan.scenario == "return" and name == first:
                self._return(name)
            cluster.heal()
            cluster.start_again()
        # Clients that leave the first cluster keep their state and change nothing there.
        for name, home in self._homes.items():
            home.shared.draining.set()
            if name != first or not self._plan.moves:
                home.visiting.draining.set()
        self._deadline = self._loop.time() + CALM_S

    async def _come_to_an_end(self, moving: asyncio.Task[None]) -> None:
        """Everything must go everywhere, and be acknowledged everywhere.

        Without a third cluster that is down first, then with it.
        """
        self._stage = "waiting for those who move"
        await self._finish([moving])
        if self._plan.third_down:
            third = self._plan.clusters[2]
            await self._go_everywhere(f" without {third}")
            self._return(third)
            self.clusters[third].start_again()
            self._deadline = self._loop.time() + CALM_S
        await self._go_everywhere("")
        self._stage = "closing the consumers"
        tasks = []
        for name, home in self._homes.items():
            home.shared.over.set()
            home.visiting.over.set()
            processes = self._processes[name]
            tasks += [*processes.consumers.values(), *processes.own.values()]
        await self._finish(tasks)

    async def _go_everywhere(self, without: str) -> None:
        """Wait for it, in the clusters that aren't lost."""
        names = [name for name, cluster in self.clusters.items() if not cluster.lost]
        self._stage = f"waiting for the producers{without}"
        await self._finish([t for n in names for t in self._processes[n].producers.values()])
        self._stage = f"waiting until everything is everywhere{without}"
        await self._until(self._lacking, names)
        self._stage = f"draining{without}"
        await self._until(self._unacknowledged, names)

    async def _finish(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        tasks = list(tasks)
        if not tasks:
            return
        # The limit is after the deadline: a step that checks the deadline itself reports the cause.
        left = max(self._deadline - self._loop.time(), 0.1) + 5.0
        timeout = None if self._deadline == float("inf") else left
        done, pending = await asyncio.wait(tasks, timeout=timeout)
        for task in tasks:
            error = task.exception() if task in done else None
            if error is not None:
                raise error if isinstance(error, StuckRun) else StuckRun(f"failed: {error!r}")
        if pending:
            raise StuckRun(f"{len(pending)} of {len(tasks)} aren't done")

    async def _until(self, what: Any, names: list[str]) -> None:
        """Look every second until there is nothing of ``what`` left."""
        while left := await what(names):
            if self._loop.time() > self._deadline:
                raise StuckRun(f"{_RULES[what.__name__]}: {left[:4]}")
            await asyncio.sleep(1.0)

    # -- moving clients --------------------------------------------------------------

    async def _move(self) -> None:
        await asyncio.sleep(self._plan.switch_at)
        if self._plan.scenario == "in order":
            await self._leave_in_order()
        elif self._plan.loses:
            await self._lose_the_first()

    async def _leave_in_order(self) -> None:
        source, target = self._plan.clusters[:2]
        leaving, home = self._processes[source], self._homes[source]
        for producer in home.producers.values():
            producer.depart()
        home.visiting.over.set()
        await self._finish([*leaving.producers.values(), *leaving.consumers.values()])
        left = self._history.now()
        self._history.add("departed", cluster=source)
        await self._until(self._behind, [source, target])
        known = await self._known(target) if self._plan.snapshots else None
        if self._plan.replays:
            await self._probe(source, target)
        await self._arrive(left, known)

    async def _probe(self, source: str, target: str) -> None:
        """Send old progress again while there are no acknowledgements."""
        there, before = [(await self._look(name)).acked for name in (source, target)]
        await self._replay(target)
        still_there, after = [(await self._look(name)).acked for name in (source, target)]
        for topic in self._topics():
            where = (topic, FOLLOWED)
            if there.get(where) == still_there.get(where):  # else there was something new
                told = [state.get(where, frozenset()) for state in (before, after)]
                self._probes.append(Probe(target, *where, *told))

    async def _replay(self, target: str) -> None:
        """Have old progress come to a cluster again."""
        config = self.clusters[target].config
        remote = Remote(target, f"pulsar://{config.host}:{config.service_port}")
        for source, topic, parts in self._sent.to(target):
            self._history.add("replay", source=source, target=target, topic=topic)
            await send_again(source, remote, topic, list(parts), self._rng)

    async def _lose_the_first(self) -> None:
        source, target = self._plan.clusters[:2]
        self._lose(self.clusters[source])
        for process in self._processes[source].all():
            process.lose()
        left = self._history.now()
        known = await self._known(target)
        await asyncio.sleep(self._rng.random() * 3.0)
        await self._arrive(left, known)

    def _lose(self, cluster: SimCluster) -> None:
        cluster.history.add("cluster lost", cluster=cluster.config.name)
        cluster.lost = True
        cluster.shut_down(self._rng, silent=self._rng.random() < 0.5)

    async def _arrive(self, left: float, known: dict[str, frozenset[str]] | None) -> None:
        """Consumers and producers of the first cluster continue at the second one."""
        source, target = self._plan.clusters[:2]
        began = self._history.now()
        self._history.add("arrive", cluster=target)
        for partition in self._topics():
            heard = None if known is None else known.get(partition, frozenset())
            switch = Switch(FOLLOWED, partition, source, target, left, began, heard)
            self._switches.append(switch)
        producers = self._homes[source].producers
        for producer in producers.values():
            producer.arrive()
        arrived = self._processes[target]
        arrived.producers |= self._begin(target, producers)
        arrived.consumers |= self._begin(target, self._homes[target].consumers)
        if self._plan.rewind_s is not None:
            await asyncio.sleep(self._plan.rewind_s)
            for partition in self._topics():
                await self._rewind(target, partition)
            if self._plan.replays:
                await self._replay(target)

    async def _rewind(self, name: str, partition: str) -> None:
        """Move the subscription back to the beginning, as an administrator does."""
        seen = await self._look(name)
        contents = [text for stored in seen.logs[partition] for text in stored.contents]
        where = {"cluster": name, "topic": partition, "subscription": FOLLOWED}
        self._history.add("rewind", **where, contents=contents)
        self._history.add("seek", subscription=FOLLOWED, to="by an administrator")
        path = f"{PREFIX}/persistent/{partition.removeprefix('persistent://')}"
        request = ("POST", f"{path}/subscription/{FOLLOWED}/resetcursor")
        beginning = {"ledgerId": -1, "entryId": -1}
        status, doubtful = 0, False
        while status not in (200, 204):
            try:
                port = self.clusters[name].config.admin_port
                status, _ = await ask(port, *request, beginning)
            except NoAnswer:
                doubtful = True
            await asyncio.sleep(1.0 if status not in (200, 204) else 0.0)
        if not doubtful:
            self._history.add("sought", subscription=FOLLOWED, reset=True)

    def _return(self, name: str) -> None:
        """Start a lost cluster again, with the clients that were lost with it and never move."""
        self.clusters[name].lost = False
        if self._plan.loses and name == self._plan.clusters[0]:
            self._processes[name] = _Processes(own=self._begin(name, self._homes[name].own))

    # -- what is where ---------------------------------------------------------------

    def _topics(self) -> list[str]:
        topic, count = f"persistent://{TOPIC}", self._plan.partitions
        return [f"{topic}-partition-{number}" for number in range(count)] if count else [topic]

    async def _look(self, name: str) -> Seen:
        seen = await look(name, self.clusters[name].disk)
        self._glimpses.append(Glimpse(self._loop.time(), name, seen.acked))
        return seen

    async def _known(self, name: str) -> dict[str, frozenset[str]]:
        """What the subscription that is followed has in a cluster, even if its power is lost."""
        disk = deepcopy(self.clusters[name].disk)
        disk.power_loss()
        seen = await look(name, disk)
        return {topic: has for (topic, of), has in seen.acked.items() if of == FOLLOWED}

    async def _lacking(self, names: list[str]) -> list[str]:
        """Entries that one cluster hasn't got from another one."""
        seen = {name: await self._look(name) for name in names}
        local = local_messages(self._history)
        found = []
        for topic in self._topics():
            counts = {
                name: Counter(
                    stored.origin
                    for stored in each.logs.get(topic, ())
                    if not local.issuperset(stored.contents)
                )
                for name, each in seen.items()
            }
            found += [
                f"{name} has {counts[name][origin]} of {counts[origin][origin]} entries of "
                f"{origin} in {topic}"
                for origin in names
                for name in names
                if counts[name][origin] < counts[origin][origin]
            ]
        return found

    async def _unacknowledged(self, names: list[str]) -> list[str]:
        """Entries that aren't acknowledged somewhere."""
        found = []
        seen = {name: await self._look(name) for name in names}
        homes = [seen[name] for name in self._plan.homes if name in seen]
        for name, each in seen.items():
            for topic, log in each.logs.items():
                contents = {text for stored in log for text in stored.contents}
                for subscription in (FOLLOWED, OWN):
                    has = each.acked.get((topic, subscription), frozenset())
                    left = contents - has
                    if subscription == FOLLOWED:  # its consumers may never get it
                        left &= {text for home in homes for text in _messages(home, topic)}
                        if self._plan.snapshots and name not in self._plan.homes:
                            continue  # the next message brings the last mark
                    if left:
                        few = sorted(left)[:3]
                        found.append(f"{subscription} in {name} has {few} of {topic} left")
        return found

    async def _behind(self, names: list[str]) -> list[str]:
        """Data and progress that the second cluster needs before the consumers switch to it."""
        found = await self._lacking(names)
        if self._plan.snapshots:
            return found
        here, there = [(await self._look(name)).acked for name in names]
        local = local_messages(self._history)
        for topic in self._topics():
            has, heard = here.get((topic, FOLLOWED)), there.get((topic, FOLLOWED))
            if left := sorted((has or frozenset()) - (heard or frozenset()) - local):
                found.append(f"{names[1]} doesn't know of {left[:3]} ({len(left)}) in {topic}")
        return found

    # -- afterwards ------------------------------------------------------------------

    async def _post_mortem(self) -> None:
        """Live against replay; then restart everything and look at the disks again."""
        for name, cluster in self.clusters.items():
            if cluster.lost:
                await self._unearth(name)
                continue
            self._stage = f"comparing replay and live in {name}"
            await self._audit(name)
            self._stage = f"restarting {name}"
            for node in cluster.live():
                cluster.kill(node)
            await self._reach_all(cluster)
            await asyncio.sleep(5.0)
            await self._audit(name)
            await self._remember(name)

    async def _audit(self, name: str) -> None:
        """Once nothing is under way: ledgers are trimmed and deleted all the time."""
        for left in reversed(range(_AUDITS)):
            found = await audit(self.clusters[name])
            if not found or not left:
                break
            await asyncio.sleep(1.0)
        self._problems += [f"{name}: {text}" for text in found]

    async def _reach_all(self, cluster: SimCluster) -> None:
        for journal in sorted(await expected_journals(cluster)):
            await cluster.admin.reach(ActorKey.parse(journal))

    async def _unearth(self, name: str) -> None:
        """See what a lost cluster had: it recovers, without notice to others."""
        self._stage = f"recovering what {name} had"
        cluster = self.clusters[name]
        for other in (other for other in self.clusters if other != name):
            cluster.network.separate(name, other, 1e9)
            cluster.network.separate(other, name, 1e9)
        cluster.down = False
        await self._reach_all(cluster)
        await self._remember(name)

    async def _remember(self, name: str) -> None:
        seen = await self._look(name)
        self._logs |= {(name, topic): log for topic, log in seen.logs.items()}
        self._acked |= {(name, *where): has for where, has in seen.acked.items()}
        self._missed |= {(name, *where): has for where, has in seen.missed.items()}


def _messages(seen: Seen, topic: str) -> list[str]:
    return [text for stored in seen.logs.get(topic, ()) for text in stored.contents]


def _named(cluster: SimCluster) -> dict[str, str]:
    config = cluster.config
    return {
        "cluster": config.name,
        "service_url": f"pulsar://{config.host}:{config.service_port}",
        "admin_url": f"http://{config.host}:{config.admin_port}",
    }
