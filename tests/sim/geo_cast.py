"""The clients of a run of several clusters, and their moves, generated from the seed.

One topic is replicated to every cluster. The progress of the subscription `FOLLOWED` is replicated
with it. Every cluster also has a subscription of its `OWN`. The plan places the producers.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.sim.geo_workload import MovingProducer
from tests.sim.history import History
from tests.sim.trimming import NEVER_S
from tests.sim.workload import ConsumerScript, Consuming, Producing, Shared
from velaray.client.enums import ConsumerType

TOPIC = "public/default/t0"
FOLLOWED, OWN = "s0", "own"
_NAMES = ("a", "b", "c")


@dataclass(frozen=True)
class GeoPlan:
    """The events of a run of several clusters.

    ``scenario``: "steady": the consumers of the subscription stay in the first cluster. "in
    order": they leave it, and continue at the second one when that has caught up. "loss": the
    first cluster is lost without warning. "return": it is lost, and comes back after the storm.
    "both": there are consumers in both all the time.
    ``rewind_s``: so many seconds after the switch the subscription is moved to the beginning.
    ``made_before``: an administrator creates the subscription in every cluster before there are
    messages; else its first user creates it.
    ``namesakes``: a cluster's only producer has the name of another cluster's, if no client moves.
    ``replays``: received progress is repeated before consumers continue at the second cluster, and
    after the subscription is moved back.
    ``snapshots``: clusters exchange progress as Pulsar does, by snapshots and marks alone.
    """

    clusters: tuple[str, ...]
    partitions: int
    scenario: str
    switch_at: float
    kind: ConsumerType
    third_down: bool
    rewind_s: float | None
    made_before: bool
    namesakes: bool
    replays: bool
    snapshots: bool
    maintenance_s: float
    producers: tuple[tuple[str, Producing], ...]
    consumers: int

    @property
    def moves(self) -> bool:
        """Whether a client leaves the first cluster."""
        return self.scenario in ("in order", "loss", "return")

    @property
    def loses(self) -> bool:
        """Whether the first cluster is lost."""
        return self.scenario in ("loss", "return")

    @property
    def homes(self) -> tuple[str, ...]:
        """The clusters that have consumers of `FOLLOWED` in the end."""
        first, second = self.clusters[:2]
        if self.scenario == "both":
            return (first, second)
        return (second,) if self.moves else (first,)


def make_geo_plan(seed: int) -> GeoPlan:
    """The plan of a seed."""
    rng = Random(f"{seed}/geo")
    clusters = _NAMES[: rng.choice([2, 2, 2, 3])]
    scenario = rng.choice(["steady", "in order", "in order", "in order", "loss", "return", "both"])
    kind = rng.choice(
        [ConsumerType.Shared] * 3
        + [ConsumerType.Failover, ConsumerType.Exclusive, ConsumerType.KeyShared]
    )
    producers = []
    for number in range(rng.randint(1, 3)):
        where = clusters[0] if number == 0 or rng.random() < 0.4 else rng.choice(clusters)
        producers.append((where, _producing(rng, f"p{number}", kind)))
    rewinds = scenario == "in order" and len(clusters) == 2 and rng.random() < 0.3
    trims = not rewinds and rng.random() < 0.7  # trimmed messages aren't redelivered
    return GeoPlan(
        clusters=clusters,
        partitions=rng.choice([0, 0, 2]),
        scenario=scenario,
        switch_at=round(rng.uniform(3.0, 11.0), 3),
        kind=kind,
        rewind_s=round(rng.uniform(0.0, 4.0), 3) if rewinds else None,
        namesakes=rng.random() < 0.3,
        made_before=rewinds or rng.random() < 0.7,
        third_down=len(clusters) == 3 and rng.random() < 0.5,
        maintenance_s=rng.choice([0.3, 1.0]) if trims else NEVER_S,
        producers=tuple(producers),
        consumers=1 if kind is ConsumerType.Exclusive else rng.randint(1, 3),
        replays=rng.random() < 0.5,
        snapshots=not rewinds and rng.random() < 0.2,
    )


def _producing(rng: Random, name: str, kind: ConsumerType) -> Producing:
    keyed = kind is ConsumerType.KeyShared
    return Producing(
        name=name,
        topic=f"persistent://{TOPIC}",
        count=rng.randint(10, 40),
        window=rng.choice([1, 4, 16]),
        batching=rng.random() < 0.5,
        timeout_ms=rng.choice([0, 30_000]),
        keys=3 if keyed else rng.choice([0, 3]),
        by_key=keyed,
        later=0 if kind is not ConsumerType.Shared else rng.choice([0, 0, 200]),
    )


@dataclass
class Household:
    """The clients of one cluster. ``visiting`` says when those consumers are to leave who
    may be elsewhere at other times, ``shared`` when the others are."""

    shared: Shared
    visiting: Shared
    producers: dict[str, MovingProducer]
    consumers: dict[str, ConsumerScript]
    own: dict[str, ConsumerScript]


def make_household(seed: int, plan: GeoPlan, cluster: str, history: History) -> Household:
    """Those of one cluster: consumers of `FOLLOWED` whether they come at once or later."""
    rng = Random(f"{seed}/{cluster}/household")
    shared, visiting = Shared(history), Shared(history)
    producers = {
        producing.name: MovingProducer(producing, shared, Random(rng.random()))
        for where, producing in plan.producers
        if where == cluster
    }
    for producer in producers.values():
        producer.local = rng.choice([0, 0, 6])
        if plan.snapshots:
            producer.local = 0  # a mark takes along what stayed elsewhere
        if plan.namesakes and not plan.moves and len(producers) == 1:
            producer.wire_name = "namesake"
    leave = cluster == plan.clusters[0]
    consumers: dict[str, ConsumerScript] = {
        f"{cluster}-c{number}": ConsumerScript(
            _consuming(rng, f"{cluster}-c{number}", FOLLOWED, plan.kind, 300 * leave),
            visiting,
            Random(rng.random()),
        )
        for number in range(plan.consumers)
        if cluster in plan.clusters[:2]
    }
    for consumer in consumers.values():
        consumer.followed = True
    kind = rng.choice([ConsumerType.Shared, ConsumerType.Failover])
    consuming = _consuming(rng, f"{cluster}-own", OWN, kind, 0)
    own = {consuming.name: ConsumerScript(consuming, shared, Random(rng.random()))}
    return Household(shared, visiting, producers, consumers, own)


def _consuming(
    rng: Random, name: str, subscription: str, kind: ConsumerType, keep: int
) -> Consuming:
    shared = kind in (ConsumerType.Shared, ConsumerType.KeyShared)
    cumulative = not shared and rng.random() < 0.5
    return Consuming(
        name=name,
        topic=f"persistent://{TOPIC}",
        subscription=subscription,
        kind=kind,
        queue=rng.choice([1, 3, 20, 1000]),
        batch_index=rng.random() < 0.7,
        nack=0 if cumulative else rng.choice([0, 50, 200]),
        keep=0 if cumulative else rng.choice([0, 50, keep]),
        redeliver=0 if cumulative else rng.choice([0, 20]),
        leave=rng.choice([0, 20]),
        seek=0,
        unsubscribe=0,
        cumulative=cumulative,
    )
