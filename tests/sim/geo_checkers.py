"""Invariants between clusters: replication (R1 to R3), and continuing elsewhere (G1 to G5).

The evidence is the history, the logs of all clusters as a reader of their disks finds them, and
the final state of their subscriptions. The contents of messages are unique and identify them. No
predicate depends on how a run was generated, or on how clusters replicate.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.sim.history import History

Place = tuple[int, int]
NOBODY = -1
SHARED = 1
"""The wire's number of that type of subscriptions."""
UNDER_WAY_S = 10.0
"""So long, at most, an acknowledgement is under way."""


class Stored(NamedTuple):
    """An entry of a log. ``origin`` is the cluster that stored it first, ``source`` where."""

    place: Place
    contents: tuple[str, ...]
    origin: str
    source: Place


@dataclass(frozen=True)
class Switch:
    """A subscription's consumers left one cluster and went on at another one.

    At ``left`` the last of them was gone, at ``began`` the first one could subscribe there.
    ``known``: of the messages that were acknowledged those of which the new cluster knew then, if
    it hadn't caught up; None if it had caught up with everything.
    """

    subscription: str
    topic: str
    source: str
    target: str
    left: float
    began: float
    known: frozenset[str] | None = None


@dataclass(frozen=True)
class Probe:
    """What a subscription had before and after progress came once more that had come before."""

    cluster: str
    topic: str
    subscription: str
    before: frozenset[str]
    after: frozenset[str]


class Glimpse(NamedTuple):
    """What the subscriptions of a cluster had at some moment, by topic partition and name."""

    time: float
    cluster: str
    acked: Mapping[tuple[str, str], frozenset[str]]


class Heard(NamedTuple):
    """Progress that a cluster had confirmed at ``time``: acknowledged entries of a subscription
    that ``origin`` stored first, up to a place and within ranges of a ledger."""

    time: float
    cluster: str
    topic: str
    subscription: str
    origin: str
    up_to: Place
    ranges: tuple[tuple[int, int, int], ...]

    def covers(self, stored: Stored) -> bool:
        """Whether the entry is acknowledged as a whole by what was heard."""
        ledger, entry = stored.source
        within = (one == ledger and first <= entry < end for one, first, end in self.ranges)
        return stored.origin == self.origin and (stored.source <= self.up_to or any(within))


@dataclass(frozen=True)
class GeoEvidence:
    """The evidence of a finished run. Logs are by cluster and topic partition. The messages that
    are acknowledged in the end, and those from before the subscription (``missed``), are by
    cluster, topic partition and subscription.

    ``ways``: pairs of source and target cluster where everything must have been replicated.
    ``cut_off``: pairs where only a prefix must have been, as the source was lost. ``followed``: the
    subscriptions whose progress is replicated; each cluster has its own besides.
    """

    history: History
    logs: Mapping[tuple[str, str], Sequence[Stored]]
    acked: Mapping[tuple[str, str, str], frozenset[str]]
    ways: Sequence[tuple[str, str]] = ()
    cut_off: Sequence[tuple[str, str]] = ()
    missed: Mapping[tuple[str, str, str], frozenset[str]] = field(default_factory=dict)
    followed: frozenset[str] = frozenset()
    switches: Sequence[Switch] = ()
    probes: Sequence[Probe] = ()
    heard: Sequence[Heard] = ()
    glimpses: Sequence[Glimpse] = ()
    _entries: dict[tuple[str, Place], tuple[str, int, Stored]] = field(default_factory=dict)

    def topics(self) -> list[str]:
        """Every topic partition."""
        return sorted({topic for _, topic in self.logs})

    def cluster_names(self) -> list[str]:
        """Every cluster."""
        return sorted({cluster for cluster, _ in self.logs})

    def own_of(self, cluster: str, topic: str) -> list[Stored]:
        """What a cluster stored first, and others are to have."""
        local, log = local_messages(self.history), self.logs.get((cluster, topic), ())
        own = [stored for stored in log if stored.origin == cluster]
        return [stored for stored in own if not local.issuperset(stored.contents)]

    def find(self, topic: str, place: Place) -> tuple[str, int, Stored] | None:
        """The cluster that has the entry at a place, its number there, and the entry.

        Places of different clusters are different.
        """
        if not self._entries:
            for (cluster, name), log in self.logs.items():
                for at, stored in enumerate(log):
                    self._entries[name, stored.place] = (cluster, at, stored)
        return self._entries.get((topic, place))

    def messages(self, topic: str, place: Place, left: int | None) -> list[str]:
        """The messages of an entry, except those whose bits are in ``left``."""
        found = self.find(topic, place)
        contents = found[2].contents if found is not None else ()
        return [text for at, text in enumerate(contents) if not (left or 0) >> at & 1]

    def up_to(self, topic: str, place: Place, left: int | None) -> list[str]:
        """The messages of a log up to an entry, except those of it that are in ``left``."""
        found = self.find(topic, place)
        if found is None:
            return []
        cluster, number, _ = found
        before = self.logs[cluster, topic][:number]
        whole = [text for stored in before for text in stored.contents]
        return whole + self.messages(topic, place, left)


def local_messages(history: History) -> set[str]:
    """Those that are for the cluster alone that stores them."""
    return {note["content"] for _, _, note in history.of("local")}


# -- what clients did ------------------------------------------------------------------


class _Acknowledged(NamedTuple):
    time: float
    cluster: str
    subscription: str
    content: str
    alone: bool = True
    """Whether it was acknowledged by itself, not with all before it."""


def _attempted(run: GeoEvidence) -> Iterator[_Acknowledged]:
    """What applications acknowledged, with or without success."""
    for time, _, note in run.history.of("acknowledging"):
        place = (note["ledger"], note["entry"])
        found = run.find(note["topic"], place)
        if found is None:
            continue
        if note["index"] < 0:
            left = None
        elif note["cumulative"]:
            left = ~((2 << note["index"]) - 1)
        else:
            left = ~(1 << note["index"])
        reach = run.up_to if note["cumulative"] else run.messages
        for content in reach(note["topic"], place, left):
            alone = not note["cumulative"]
            yield _Acknowledged(time, found[0], note["subscription"], content, alone)


def _confirmed(run: GeoEvidence) -> Iterator[_Acknowledged]:
    """Durable acknowledgements, as the broker confirmed them."""
    sessions: dict[tuple[int, int], tuple[str, str]] = {}
    for time, kind, note in run.history.of("subscribe", "ack durable"):
        who = (note["connection"], note["consumer"])
        if kind == "subscribe":
            sessions[who] = (note["subscription"], note["topic"])
            continue
        subscription, topic = sessions[who]
        reach = run.up_to if note["cumulative"] else run.messages
        for ledger, entry, left in note["entries"]:
            found = run.find(topic, (ledger, entry))
            if found is None:
                continue
            for content in reach(topic, (ledger, entry), left):
                yield _Acknowledged(time, found[0], subscription, content)


class _Delivered(NamedTuple):
    time: float
    began: float
    cluster: str
    topic: str
    subscription: str
    kind: int
    content: str
    origin: str


def _delivered(run: GeoEvidence) -> Iterator[_Delivered]:
    """What brokers delivered, and since when the consumer was subscribed."""
    sessions: dict[tuple[int, int], tuple[float, str, str, int]] = {}
    for time, kind, note in run.history.of("subscribe", "deliver"):
        who = (note["connection"], note["consumer"])
        if kind == "subscribe":
            sessions[who] = (time, note["subscription"], note["topic"], note["kind"])
            continue
        began, subscription, topic, sort = sessions[who]
        place = (note["ledger"], note["entry"])
        found = run.find(topic, place)
        if found is not None:
            for content in run.messages(topic, place, ~note["open"]):
                origin = found[2].origin
                yield _Delivered(
                    *(time, began, found[0], topic, subscription, sort, content, origin)
                )


# -- replication -----------------------------------------------------------------------


def replicas_have_the_entries_of_their_source(run: GeoEvidence) -> Iterator[str]:
    """R1. Every other cluster has each entry of its source once, with the same messages, except
    entries that aren't replicated. It has a prefix of the entries of a lost source."""
    for source, target in (*run.ways, *run.cut_off):
        for topic in run.topics():
            log = run.logs.get((target, topic), ())
            ours, theirs = run.own_of(source, topic), [s for s in log if s.origin == source]
            counted = Counter(stored.contents for stored in theirs)
            twice = [list(contents) for contents, count in counted.items() if count > 1]
            if twice:
                yield f"{topic}: {target} has {twice[:3]} of {source} more than once"
            expected = ours if (source, target) in run.ways else ours[: len(theirs)]
            wanted = Counter(stored.contents for stored in expected)
            if missing := [list(contents) for contents in wanted - counted]:
                yield f"{topic}: {target} lacks {missing[:3]} ({len(missing)}) of {source}"
            if strange := [list(contents) for contents in counted - wanted]:
                yield f"{topic}: {target} has {strange[:3]} ({len(strange)}), {source} hasn't"


def replicas_have_the_order_of_their_source(run: GeoEvidence) -> Iterator[str]:
    """R2. What came from a cluster is in that cluster's order, and says truly where it is there."""
    for topic in run.topics():
        places: dict[tuple[str, Place], tuple[int, Stored]] = {
            (cluster, stored.place): (at, stored)
            for (cluster, name), log in run.logs.items()
            if name == topic
            for at, stored in enumerate(log)
        }
        for (cluster, name), log in run.logs.items():
            last: dict[str, int] = {}
            for stored in log if name == topic else ():
                if stored.origin == cluster:
                    continue
                at, first = places.get((stored.origin, stored.source), (NOBODY, None))
                if first is None or first.contents != stored.contents:
                    where = f"{stored.origin} {stored.source}"
                    yield f"{topic}: {cluster} has {stored.contents} as {where}: {first}"
                elif at <= last.get(stored.origin, NOBODY):
                    yield f"{topic}: {cluster} has {stored.contents} of {stored.origin} too late"
                last[stored.origin] = max(at, last.get(stored.origin, NOBODY))


def replication_makes_no_loops(run: GeoEvidence) -> Iterator[str]:
    """R3. Nothing returns to the cluster that stored it first, and nothing is in a log twice."""
    for (cluster, topic), log in run.logs.items():
        seen: dict[str, Place] = {}
        for stored in log:
            if stored.origin == cluster and stored.source != stored.place:
                yield f"{topic}: {stored.contents} came round to {cluster}"
            for content in stored.contents:
                if content in seen:
                    yield f"{topic}: {cluster} has {content} at {seen[content]}, {stored.place}"
                seen[content] = stored.place


# -- going on elsewhere ----------------------------------------------------------------


def confirmed_messages_are_not_redelivered_elsewhere(run: GeoEvidence) -> Iterator[str]:
    """G1. Messages acknowledged with a receipt before a switch aren't delivered after it. If the
    new cluster hadn't caught up, only messages whose progress it lacked may be."""
    confirmed = list(_confirmed(run))
    delivered = list(_delivered(run))
    for switch in run.switches:
        done = {
            each.content: each.time
            for each in confirmed
            if (each.cluster, each.subscription) == (switch.source, switch.subscription)
            and each.time <= switch.left
        }
        if switch.known is not None:
            done = {content: time for content, time in done.items() if content in switch.known}
        rewound = _rewound(run, switch.subscription)
        for each in delivered:
            where = (each.cluster, each.topic, each.subscription)
            if where != (switch.target, switch.topic, switch.subscription):
                continue
            if each.began >= switch.began and each.content in done and each.began < rewound:
                yield (
                    f"{switch.subscription} acknowledged {each.content} in {switch.source} with a "
                    f"receipt at {done[each.content]} s; it came again in {switch.target} at "
                    f"{each.time} s, {switch.began} s was the switch"
                )


def messages_with_known_acknowledgements_are_not_delivered(run: GeoEvidence) -> Iterator[str]:
    """G1. At any time, a cluster doesn't deliver messages to later consumers after it confirmed
    their acknowledgement elsewhere, even if the message arrives after the progress."""
    known: dict[tuple[str, str, str, str], float] = {}
    for each in run.heard:
        for stored in run.logs.get((each.cluster, each.topic), ()):
            for content in stored.contents if each.covers(stored) else ():
                where = (each.cluster, each.topic, each.subscription, content)
                known[where] = min(each.time, known.get(where, each.time))
    rewound = {name: _rewound(run, name) for name in {each.subscription for each in run.heard}}
    for got in _delivered(run):
        name = got.subscription
        since = known.get((got.cluster, got.topic, name, got.content))
        if since is not None and since < got.began < rewound[name]:
            yield (
                f"{got.cluster} knew at {since} s that {got.content} is acknowledged by {name}, "
                f"and delivered it at {got.time} s to who had subscribed at {got.began} s"
            )


def _rewound(run: GeoEvidence, subscription: str) -> float:
    """When the first consumer moved the subscription."""
    seeks = [
        time for time, _, note in run.history.of("seek") if note["subscription"] == subscription
    ]
    return min(seeks, default=float("inf"))


def nothing_unacknowledged_is_skipped(run: GeoEvidence) -> Iterator[str]:
    """G2. What a subscription has of another cluster's messages in the end, some application
    acknowledged: in that cluster or elsewhere."""
    yield from _passed_over(run, own=False)


def own_messages_are_never_filtered(run: GeoEvidence) -> Iterator[str]:
    """G4. What a subscription has of its own cluster's messages in the end, some application
    acknowledged, and not only one that has never got them."""
    yield from _passed_over(run, own=True)


def _passed_over(run: GeoEvidence, own: bool) -> Iterator[str]:
    attempted: dict[tuple[str, str], set[str]] = defaultdict(set)
    for each in _attempted(run):
        attempted[each.subscription, each.cluster].add(each.content)
    for (cluster, topic, subscription), acked in run.acked.items():
        heard = run.cluster_names() if subscription in run.followed else [cluster]
        done = {text for name in heard for text in attempted[subscription, name]}
        missed = run.missed.get((cluster, topic, subscription), frozenset())
        missing = [
            content
            for stored in run.logs[cluster, topic]
            if (stored.origin == cluster) is own
            for content in stored.contents
            if content in acked - missed and content not in done
        ]
        if missing:
            yield (
                f"{subscription} in {cluster} has {missing[:5]} ({len(missing)}) of {topic}, which "
                "nobody acknowledged"
            )


def nothing_is_acknowledged_before_an_application_does(run: GeoEvidence) -> Iterator[str]:
    """G2 and G4 at every recorded moment: what a subscription has then, some
    application had acknowledged by then."""
    first: dict[tuple[str, str, str], float] = {}
    for each in _attempted(run):
        heard = run.cluster_names() if each.subscription in run.followed else [each.cluster]
        for cluster in heard:
            first.setdefault((cluster, each.subscription, each.content), each.time)
    for time, cluster, acked in run.glimpses:
        for (topic, name), contents in acked.items():
            missed = run.missed.get((cluster, topic, name), frozenset())
            early = [
                content
                for content in sorted(contents - missed)
                if first.get((cluster, name, content), float("inf")) > time
            ]
            if early:
                yield (
                    f"{name} in {cluster} has {early[:5]} ({len(early)}) of {topic} at {time} s, "
                    "which nobody had acknowledged"
                )


def keys_keep_their_order_across_the_switch(run: GeoEvidence) -> Iterator[str]:
    """G3. An ordered subscription first delivers the messages of one key and one producer in the
    order of sending, also after a switch. Messages that different clusters stored first are
    compared only in the two clusters of a switch that waited until everything was replicated.
    Where consumers of several clusters get the same messages, each cluster is judged alone."""
    local = local_messages(run.history)  # which consumers elsewhere never got
    sent = [note for _, _, note in run.history.of("send")]
    keys = {note["content"]: note["key"] for note in sent if note["content"] not in local}
    switched = {switch.subscription for switch in run.switches}
    hasty = any(switch.known is not None for switch in run.switches)
    ends = {cluster for switch in run.switches for cluster in (switch.source, switch.target)}
    waited = ends if not hasty else set()
    rewound = {name: _rewound(run, name) for name in switched}
    seen: set[tuple[str, str, str]] = set()
    last: dict[tuple[Any, ...], int] = {}
    for each in _delivered(run):
        name, content = each.subscription, each.content
        where = "" if name in switched else each.cluster
        first = (name, where, content) not in seen
        if each.kind == SHARED or not first or not keys.get(content):
            continue
        if each.time > rewound.get(name, each.time):
            continue
        seen.add((name, where, content))
        producer, _, number = content.rpartition(":")
        origin = "" if each.cluster in waited else each.origin
        line = (name, where, each.topic, keys[content], producer, origin)
        if int(number) < last.get(line, 0):
            yield (
                f"{name} got {content} of key {keys[content]} in {each.cluster} at {each.time} s, "
                f"after number {last[line]}"
            )
        last[line] = max(int(number), last.get(line, 0))


def moves_back_are_not_undone(run: GeoEvidence) -> Iterator[str]:
    """G5. A subscription that is moved back after the switch redelivers everything. No progress
    from elsewhere, late or repeated, counts as an acknowledgement.

    Acknowledgements that were unanswered at the move are exempt.
    """
    for time, _, rewind in run.history.of("rewind"):
        name, cluster, topic = rewind["subscription"], rewind["cluster"], rewind["topic"]
        doubtful = {
            each.content
            for each in _attempted(run)
            if each.subscription == name
            and time - UNDER_WAY_S < each.time
            and (each.alone or each.time < time)
        }
        doubtful -= {
            each.content
            for each in _confirmed(run)
            if each.subscription == name and each.time < time
        }
        again = {
            note["content"]
            for when, _, note in run.history.of("received")
            if when >= time and (note["subscription"], note["topic"]) == (name, topic)
        }
        if missing := sorted(set(rewind["contents"]) - again - doubtful):
            yield (
                f"{name} of {topic} in {cluster} was moved back at {time} s, and {missing[:5]} "
                f"({len(missing)}) never came again"
            )


def repeated_progress_changes_nothing(run: GeoEvidence) -> Iterator[str]:
    """G5. Progress that was under way at the switch doesn't change a subscription when it arrives
    late, again or in another order."""
    for probe in run.probes:
        if probe.before != probe.after:
            differing = sorted(probe.before ^ probe.after)
            yield (
                f"{probe.subscription} of {probe.topic} in {probe.cluster} has other messages when "
                f"old progress comes again: {differing[:5]} ({len(differing)})"
            )


GEO_CHECKERS = (
    replicas_have_the_entries_of_their_source,
    replicas_have_the_order_of_their_source,
    replication_makes_no_loops,
    confirmed_messages_are_not_redelivered_elsewhere,
    messages_with_known_acknowledgements_are_not_delivered,
    nothing_unacknowledged_is_skipped,
    nothing_is_acknowledged_before_an_application_does,
    keys_keep_their_order_across_the_switch,
    own_messages_are_never_filtered,
    moves_back_are_not_undone,
    repeated_progress_changes_nothing,
)


def judge_geo(run: GeoEvidence) -> list[str]:
    """Everything that these predicates have to say, a few lines of each."""
    faults = []
    for checker in GEO_CHECKERS:
        found = [f"{checker.__name__}: {fault}" for fault in checker(run)]
        faults += found[:3]
    return faults
