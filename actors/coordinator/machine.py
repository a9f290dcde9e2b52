"""The transaction coordinator: its transactions, their participants and their verdicts.

A transaction's sequence is dense in its coordinator and never reused. The transaction is OPEN from
`Begin` on and collects participants: topic partitions that get messages, subscriptions that get
acknowledgements. One event decides it, to commit or to abort (COMMITTING, ABORTING): the commit
point, which never changes. Participants then apply the verdict; this machine only records when all
have. If partitions report that entries go to other clusters, it keeps those clusters (*spread*)
until they know of each other. Then the transaction is COMMITTED or ABORTED, and only the verdict is
kept, for ever: a sequence below the next one that isn't in the table of unfinished transactions is
committed, unless it is in the set of aborted ones. The set is kept in segments
(`velaray.actors.sets.acknowledged_ranges`); a checkpoint writes the changed ones.

Deadlines have a resolution of `TICK_MS`. One that passed while the actor was down fires at the
first `Expire`. A transaction that began later than its own timeout from now is aborted, too: a
clock that was ahead made its deadline, so nothing stays open for long after a clock is set back.

A repeated `Begin` begins another transaction; the deadline aborts the one whose reply was lost.

Many transactions can be committed by one event: `velaray.actors.coordinator.commit_sequence`.

Commands: `Begin`, `AddPartitions`, `AddSubscriptions`, `MayJoin`, `Decide`, `Spread`, `Finish`,
`Expire`; `CommitInSequence`, `LookUpCommitSequence`, `ForgetCommitSequence`. Events:
TransactionBegun,
PartitionsJoined, SubscriptionsJoined, TransactionDecided, TransactionSpread, TransactionFinished,
SeriesCommitted, SeriesForgotten (and LedgerOpened, which changes nothing here).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from google.protobuf.message import Message

from velaray.actors.coordinator.commit_sequence import (
    CommitInSequence,
    ForgetCommitSequence,
    LookUpCommitSequence,
    decide_commit_sequence,
    refusal_of_number,
)
from velaray.actors.coordinator.state import (
    LEGAL,
    CommitSequence,
    CoordinatorState,
    Status,
    Transaction,
    refusal_of,
)
from velaray.actors.machine import Decision, Reason, refuse, require
from velaray.events.events_pb2 import (
    ClusterParticipants,
    LedgerOpened,
    PartitionsJoined,
    SeriesCommitted,
    SeriesForgotten,
    SubscriptionName,
    SubscriptionsJoined,
    TransactionBegun,
    TransactionDecided,
    TransactionFinished,
    TransactionSpread,
)
from velaray.events.segments import Segment, StoredSegment

EXPIRED_AT_ONCE = 1000
"""The most transactions that one `Expire` aborts."""

_ABORTED = "aborted/"


_WAY = {
    True: (Status.OPEN, Status.COMMITTING, Status.COMMITTED),
    False: (Status.OPEN, Status.ABORTING, Status.ABORTED),
}


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin a transaction that is aborted after ``timeout_ms`` (at least 1).

    ``owner`` ("": any role) is the role that may use it. Reply: `Begun`; refused INVALID without a
    timeout, BUSY if ``most_open`` (0: any number) transactions are unfinished. With a ``series``
    the transaction belongs to that ``number`` of the commit sequence, and a commit of the number,
    or a later one, without the transaction aborts it; refused CONFLICT if that has happened,
    NOT_ALLOWED to other roles than the owner of the commit sequence. The topic partitions and the
    (topic partition, subscription) join with the beginning.
    """

    timeout_ms: int
    owner: str = ""
    most_open: int = 0
    series: str = ""
    number: int = 0
    topics: Sequence[str] = ()
    subscriptions: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Begun:
    """The transaction's sequence."""

    sequence: int


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Add topic partitions that will get messages in the transaction. Reply: `Joined`, also for
    present participants. Refused NOT_FOUND, NOT_ALLOWED to other roles than the owner, and CONFLICT
    if the transaction is decided."""

    sequence: int
    topics: Sequence[str]
    owner: str = ""


@dataclass(frozen=True, slots=True)
class AddSubscriptions:
    """As `AddPartitions`, for acknowledgements to (topic partition, subscription)."""

    sequence: int
    subscriptions: Sequence[tuple[str, str]]
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Joined:
    """The partitions or subscriptions are participants."""


@dataclass(frozen=True, slots=True)
class MayJoin:
    """Ask, for a participant, whether it may accept work in the transaction; changes nothing.

    It is a command rather than a read because its answer implies that the participant's joining is
    durable, so the participant will get the verdict. Reply: `Joined`. Refused NOT_FOUND, CONFLICT
    if the transaction is decided, NOT_ALLOWED if the caller isn't a participant.
    """

    sequence: int
    topic: str
    subscription: str | None = None


@dataclass(frozen=True, slots=True)
class Decide:
    """Commit or abort. Reply: `Decided`, which never changes.

    Refused NOT_FOUND if there was no such transaction; NOT_ALLOWED to other roles than the owner,
    unless ``force``; CONFLICT if the other verdict was reached.
    """

    sequence: int
    commit: bool
    owner: str = ""
    force: bool = False


@dataclass(frozen=True, slots=True)
class Decided:
    """The verdict; ``finished``: all participants have applied it."""

    sequence: int
    commit: bool
    finished: bool


@dataclass(frozen=True, slots=True)
class Spread:
    """Record that all participants have applied the commit, and the clusters that the entries of
    partitions go to.

    Reply: `SpreadIs`, as first recorded. Refused CONFLICT unless the transaction is committing.
    """

    sequence: int
    clusters: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class SpreadIs:
    """The partitions by cluster; it never changes."""

    clusters: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Finish:
    """Record that all participants have applied the verdict. Reply: `Decided`; refused NOT_FOUND,
    and CONFLICT while the transaction is open."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Expire:
    """Abort transactions past their deadline, or begun too far in the future; `EXPIRED_AT_ONCE` at
    most. Reply: `Expired`."""


@dataclass(frozen=True, slots=True)
class Expired:
    """The aborted sequences: those past their deadline, then those begun too far in the future."""

    sequences: tuple[int, ...]


def _begin(state: CoordinatorState, command: Begin, now_ms: int) -> Decision:
    if command.timeout_ms < 1:
        return refuse(Reason.INVALID, f"a transaction's timeout of {command.timeout_ms} ms")
    if 0 < command.most_open <= len(state.unfinished):
        return refuse(
            Reason.BUSY, f"{command.most_open} transactions are active already: try again"
        )
    refusal = refusal_of_number(state, command.series, command.number, command.owner)
    if refusal is not None:
        return refusal
    sequence = state.next_sequence
    event = TransactionBegun(
        sequence=sequence,
        owner=command.owner,
        at_ms=now_ms,
        timeout_ms=command.timeout_ms,
        series=command.series,
        number=command.number,
    )
    events: list[Message] = [event]
    if command.topics:
        topics = dict.fromkeys(command.topics)
        events.append(PartitionsJoined(sequence=sequence, topics=topics))
    if command.subscriptions:
        events.append(_joined(sequence, dict.fromkeys(command.subscriptions)))
    return Decision(tuple(events), Begun(sequence))


def _joined(sequence: int, subscriptions: Iterable[tuple[str, str]]) -> SubscriptionsJoined:
    named = [SubscriptionName(topic=topic, subscription=name) for topic, name in subscriptions]
    return SubscriptionsJoined(sequence=sequence, subscriptions=named)


def _add(state: CoordinatorState, command: AddPartitions | AddSubscriptions) -> Decision:
    sequence = command.sequence
    refusal = refusal_of(state, sequence, command.owner)
    if refusal is not None:
        return refusal
    status = state.status(sequence)
    if status != Status.OPEN:
        return refuse(Reason.CONFLICT, f"transaction {sequence} is {status}: nothing can join it")
    known = state.unfinished[sequence]
    event: Message
    if isinstance(command, AddPartitions):
        topics = [topic for topic in command.topics if topic not in known.partitions]
        event, new = PartitionsJoined(sequence=sequence, topics=topics), bool(topics)
    else:
        pairs = [pair for pair in command.subscriptions if pair not in known.subscriptions]
        event, new = _joined(sequence, pairs), bool(pairs)
    return Decision((event,) if new else (), Joined())


def _may_join(state: CoordinatorState, command: MayJoin) -> Decision:
    sequence, topic, subscription = command.sequence, command.topic, command.subscription
    status = state.status(sequence)
    if status is None:
        return refuse(Reason.NOT_FOUND, f"there is no transaction {sequence} here")
    if status != Status.OPEN:
        return refuse(Reason.CONFLICT, f"transaction {sequence} is {status}")
    known = state.unfinished[sequence]
    if subscription is None and topic in known.partitions:
        return Decision(reply=Joined())
    if subscription is not None and (topic, subscription) in known.subscriptions:
        return Decision(reply=Joined())
    what = topic if subscription is None else f"subscription {subscription} of {topic}"
    return refuse(Reason.NOT_ALLOWED, f"{what} was not added to transaction {sequence}")


def _decide(state: CoordinatorState, command: Decide, now_ms: int) -> Decision:
    sequence, commit = command.sequence, command.commit
    refusal = refusal_of(state, sequence, command.owner, command.force)
    if refusal is not None:
        return refusal
    status = state.status(sequence)
    open_, ending, ended = _WAY[commit]
    if status not in (open_, ending, ended):
        verb = "committed" if commit else "aborted"
        return refuse(
            Reason.CONFLICT, f"transaction {sequence} is {status}: it can't be {verb} any more"
        )
    reply = Decided(sequence, commit, status == ended)
    if status != Status.OPEN:
        return Decision(reply=reply)
    return Decision((TransactionDecided(sequence=sequence, commit=commit, at_ms=now_ms),), reply)


def _spread(state: CoordinatorState, command: Spread) -> Decision:
    known = state.unfinished.get(command.sequence)
    if known is None or known.status != Status.COMMITTING:
        return refuse(Reason.CONFLICT, f"transaction {command.sequence} isn't being committed")
    if known.spread:
        return Decision(reply=SpreadIs(dict(known.spread)))
    clusters = [
        ClusterParticipants(cluster=name, topics=topics)
        for name, topics in sorted(command.clusters.items())
    ]
    event = TransactionSpread(sequence=command.sequence, clusters=clusters)
    return Decision((event,), SpreadIs(dict(command.clusters)))


def _finish(state: CoordinatorState, sequence: int) -> Decision:
    match state.status(sequence):
        case None:
            return refuse(Reason.NOT_FOUND, f"there is no transaction {sequence} here")
        case Status.OPEN:
            return refuse(Reason.CONFLICT, f"transaction {sequence} isn't decided yet")
        case Status.COMMITTING | Status.ABORTING as status:
            reply = Decided(sequence, status == Status.COMMITTING, finished=True)
            return Decision((TransactionFinished(sequence=sequence),), reply)
        case status:
            return Decision(reply=Decided(sequence, status == Status.COMMITTED, finished=True))


def _expire(state: CoordinatorState, now_ms: int) -> Decision:
    late = state.deadlines.irange(maximum=(now_ms, state.next_sequence))
    ahead = state.starts.irange(minimum=(now_ms + 1, 0))
    sequences = tuple(sequence for _, sequence in islice(chain(late, ahead), EXPIRED_AT_ONCE))
    events = tuple(
        TransactionDecided(sequence=sequence, commit=False, timed_out=True, at_ms=now_ms)
        for sequence in sequences
    )
    return Decision(events, Expired(sequences))


class CoordinatorMachine:
    """The machine of one transaction coordinator."""

    def initial(self) -> CoordinatorState:
        """No transaction yet."""
        return CoordinatorState()

    def decide(self, state: CoordinatorState, command: Any, now_ms: int) -> Decision:
        """The decision on ``command``. Raises TypeError for a command of another machine."""
        match command:
            case Begin():
                return _begin(state, command, now_ms)
            case AddPartitions() | AddSubscriptions():
                return _add(state, command)
            case MayJoin():
                return _may_join(state, command)
            case Decide():
                return _decide(state, command, now_ms)
            case Spread():
                return _spread(state, command)
            case Finish(sequence):
                return _finish(state, sequence)
            case Expire():
                return _expire(state, now_ms)
            case CommitInSequence() | LookUpCommitSequence() | ForgetCommitSequence():
                return decide_commit_sequence(state, command, now_ms)
        raise TypeError(f"a coordinator doesn't handle {type(command).__name__}")

    def evolve(self, state: CoordinatorState, event: Message) -> None:
        """Apply ``event``. Raises TypeError for an event of another machine."""
        match event:
            case TransactionBegun(sequence=sequence):
                begun = Transaction(
                    *(sequence, event.owner, event.at_ms, event.timeout_ms),
                    series=event.series,
                    number=event.number,
                )
                state.unfinished[sequence] = begun
                _watch(state, begun)
                state.next_sequence = sequence + 1
            case PartitionsJoined(sequence=sequence, topics=topics):
                state.unfinished[sequence].partitions.update(dict.fromkeys(topics))
            case SubscriptionsJoined(sequence=sequence):
                pairs = [(each.topic, each.subscription) for each in event.subscriptions]
                state.unfinished[sequence].subscriptions.update(dict.fromkeys(pairs))
            case TransactionDecided(sequence=sequence, commit=commit):
                state.unfinished[sequence].timed_out = event.timed_out
                state.timed_out += event.timed_out
                _decided(state, sequence, commit)
            case SeriesCommitted(series=commit_sequence, number=number, sequences=sequences):
                state.series[commit_sequence] = CommitSequence(event.owner, number)
                for sequence in sequences:
                    _decided(state, sequence, commit=True)
            case SeriesForgotten(series=commit_sequence):
                del state.series[commit_sequence]
            case TransactionSpread(sequence=sequence, clusters=clusters):
                spread = {each.cluster: list(each.topics) for each in clusters}
                state.unfinished[sequence].spread = spread
            case TransactionFinished(sequence=sequence):
                if state.unfinished.pop(sequence).status == Status.ABORTING:
                    state.aborted.add(sequence, sequence + 1)
            case LedgerOpened():
                pass
            case _:
                raise TypeError(f"a coordinator doesn't handle {type(event).__name__}")

    def check(self, state: CoordinatorState) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        sequences = list(state.unfinished)
        require(sequences == sorted(sequences), "unfinished transactions are in their order")
        for sequence, known in state.unfinished.items():
            name = str(sequence)
            require(known.sequence == sequence, "a transaction is found by its sequence", name)
            require(sequence < state.next_sequence, "sequences are never given again", name)
            require(
                LEGAL[known.status] != frozenset(), "unfinished transactions can continue", name
            )
            require(sequence not in state.aborted, "a verdict never changes", name)
            timed = known.timed_out and known.status != Status.ABORTING
            require(not timed, "what timed out is aborted", name)
            gone = known.spread and known.status != Status.COMMITTING
            require(not gone, "replicated transactions are being committed", name)
        state.aborted.check(0)
        require(state.aborted.end() <= state.next_sequence, "aborted ones were begun")
        waiting = {(t.deadline_ms, t.sequence) for t in _open(state)}
        require(set(state.deadlines) == waiting, "open transactions, no others, have deadlines")
        began = {(t.earliest_ms, t.sequence) for t in _open(state)}
        require(set(state.starts) == began, "open transactions, no others, are watched")

    def snapshot(self, state: CoordinatorState) -> Mapping[str, Segment]:
        """Segments: ``coordinator``, ``unfinished``, ``series`` if there are any, and
        ``aborted/<n>`` as in `velaray.actors.sets.acknowledged_ranges`."""
        segments: dict[str, Segment] = {
            "coordinator": _to_json(
                [state.next_sequence, state.timed_out, state.aborted.segment_size]
            ),
            "unfinished": _to_json([_fields(known) for known in state.unfinished.values()]),
        }
        if state.series:
            segments["series"] = _to_json(
                [[name, each.owner, each.last] for name, each in state.series.items()]
            )
        for number, segment in state.aborted.snapshot().items():
            segments[f"{_ABORTED}{number}"] = segment
        return segments

    def restore(self, segments: Mapping[str, bytes]) -> CoordinatorState:
        """The state whose snapshot is ``segments``."""
        next_sequence, timed_out, size = json.loads(segments["coordinator"])
        known = [_transaction(fields) for fields in json.loads(segments["unfinished"])]
        state = CoordinatorState(
            next_sequence, {each.sequence: each for each in known}, timed_out=timed_out
        )
        for name, owner, last in json.loads(segments.get("series", b"[]")):
            state.series[name] = CommitSequence(owner, last)
        state.aborted.restore(size, _numbered(segments))
        for each in _open(state):
            _watch(state, each)
        return state

    def on_checkpoint(self, state: CoordinatorState, stored: Mapping[str, StoredSegment]) -> None:
        """Note where a durable checkpoint of the state has its segments."""
        state.aborted.on_checkpoint(_numbered(stored))

    def needs_checkpoint(self, state: CoordinatorState) -> bool:
        """Whether a checkpoint is due, so that memory can be freed."""
        return state.aborted.needs_checkpoint()

    def needs(self, state: CoordinatorState, command: Any, now_ms: int) -> Sequence[StoredSegment]:
        """The stored segments that ``command`` may read and that aren't in memory."""
        if not state.aborted.cold_count():
            return ()
        match command:
            case CommitInSequence(sequences=sequences):
                named = tuple(sequences)
            case Decide() | Finish() | MayJoin() | AddPartitions() | AddSubscriptions():
                named = (command.sequence,)
            case _:
                return ()
        return [place for at in named for place in state.aborted.cold_within(at, at + 1)]

    def provide(self, state: CoordinatorState, name: str, raw: bytes) -> None:
        """Take the bytes of a stored segment into memory."""
        for number in _numbered({name: raw}):
            state.aborted.provide(number, raw)

    def evict(self, state: CoordinatorState) -> bool:
        """Release the memory of stored segments until the budget is kept."""
        return state.aborted.evict()


def _decided(state: CoordinatorState, sequence: int, commit: bool) -> None:
    decided = state.unfinished[sequence]
    decided.status = _WAY[commit][1]
    state.deadlines.remove((decided.deadline_ms, sequence))
    state.starts.remove((decided.earliest_ms, sequence))


def _watch(state: CoordinatorState, begun: Transaction) -> None:
    """Track the deadline of an open transaction."""
    state.deadlines.add((begun.deadline_ms, begun.sequence))
    state.starts.add((begun.earliest_ms, begun.sequence))


def _open(state: CoordinatorState) -> list[Transaction]:
    return [each for each in state.unfinished.values() if each.status == Status.OPEN]


def _numbered(segments: Mapping[str, Any]) -> dict[int, Any]:
    return {
        int(name.removeprefix(_ABORTED)): segment
        for name, segment in segments.items()
        if name.startswith(_ABORTED)
    }


def _fields(known: Transaction) -> list[Any]:
    return [
        *(known.sequence, known.owner, known.begun_ms, known.timeout_ms),
        *(known.status, known.timed_out, list(known.partitions), list(known.subscriptions)),
        *(known.series, known.number),
        *((known.spread,) if known.spread else ()),
    ]


def _transaction(fields: list[Any]) -> Transaction:
    sequence, owner, begun_ms, timeout_ms, status, timed_out, *rest = fields
    partitions, subscriptions, *of_sequence = rest
    commit_sequence, number, *spread = of_sequence or ("", 0)  # absent in older checkpoints
    return Transaction(
        *(
            sequence,
            owner,
            begun_ms,
            timeout_ms,
            Status(status),
            timed_out,
            commit_sequence,
            number,
        ),
        partitions=dict.fromkeys(partitions),
        subscriptions=dict.fromkeys((topic, name) for topic, name in subscriptions),
        spread=spread[0] if spread else {},
    )


def _to_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
