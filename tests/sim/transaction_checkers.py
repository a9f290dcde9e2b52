"""What must hold of transactions: the invariants by their numbers, I1 to I11, and what follows.

Checkers as in `tests.sim.checkers`. They go by the history and by the journals of coordinators,
partitions and subscriptions, as `tests.sim.transaction_evidence` reads them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tests.sim.dead_letter_checkers import dead_lettered
from tests.sim.pending import aborts_leave_nothing, holders_are_one, still_pending
from tests.sim.transaction_cast import ACCOUNTS, RESULTS, SOURCE, WORKERS
from tests.sim.transaction_evidence import PartitionPast, Stored, TransactionEvidence
from tests.sim.transactions import FORGOTTEN
from velaray.actors.partition.machine import PartitionMachine
from velaray.events.events_pb2 import (
    EntryAppended,
    PartitionsJoined,
    SubscriptionsJoined,
    TransactionAcksEnded,
    TransactionBegun,
    TransactionDecided,
    TransactionEnded,
    TransactionFinished,
)
from velaray.events.ids import TransactionId

if TYPE_CHECKING:
    from tests.sim.checkers import Evidence

Told = Callable[["Evidence", TransactionEvidence], Iterator[str]]


def _name(event: Any) -> str:
    return str(TransactionId(event.coordinator, event.sequence))


def _deliveries(
    run: Evidence, past: TransactionEvidence
) -> Iterator[tuple[float, str, str, Stored]]:
    """Time, subscription, topic and entry of what was delivered of transactions."""
    entries = {
        (topic, entry.place): entry
        for topic, known in past.partitions.items()
        for entry in known.entries
        if entry.txn is not None
    }
    sessions: dict[tuple[int, int], tuple[str, str]] = {}
    for time, kind, note in run.history.of("subscribe", "deliver"):
        number = (note["connection"], note["consumer"])
        if kind == "subscribe":
            sessions[number] = (note["subscription"], note["topic"])
            continue
        subscription, topic = sessions[number]
        entry = entries.get((topic, (note["ledger"], note["entry"])))
        if entry is not None:
            yield time, subscription, topic, entry


def delivered_only_if_committed(run: Evidence, past: TransactionEvidence) -> Iterator[str]:
    """I1: messages of uncommitted transactions are never delivered, by any way of reading."""
    verdicts = past.verdicts()
    for time, subscription, topic, entry in _deliveries(run, past):
        if not verdicts.get(str(entry.txn)):
            yield (
                f"{time} s: {subscription} of {topic} got {entry.contents} of {entry.txn},"
                f" which wasn't committed"
            )


def committed_messages_are_not_filtered(run: Evidence, past: TransactionEvidence) -> Iterator[str]:
    """I2. Partitions hide exactly the retained messages of aborted transactions.

    The delivery of all others is judged as for every message.
    """
    aborted = past.aborted()
    for topic, known in past.partitions.items():
        wanted = {
            entry.offset
            for entry in known.entries
            if entry.txn in aborted and entry.place[0] not in known.trimmed
        }
        kept = {e.offset for e in known.entries if e.place[0] not in known.trimmed}
        ranges = known.state.transactions.hidden.within(0, len(known.entries))
        found = {at for first, end in ranges for at in range(first, end)} & kept
        if found != wanted:
            yield f"{topic} hides {sorted(found - wanted)} and not {sorted(wanted - found)}"


def max_read_is_as_derived(run: Evidence, past: TransactionEvidence) -> Iterator[str]:
    """I3: the max-read offset is where the oldest ongoing transaction begins, or the end of the
    log, and never goes back."""
    for topic, known in past.partitions.items():
        machine = PartitionMachine()
        state, ongoing, end, before = machine.initial(), dict[str, int](), 0, 0
        for number, event in enumerate(known.events):
            machine.evolve(state, event)
            if isinstance(event, EntryAppended):
                if event.txn_sequence:
                    name = str(TransactionId(event.txn_coordinator, event.txn_sequence))
                    ongoing.setdefault(name, end)
                end += 1
            elif isinstance(event, TransactionEnded):
                ongoing.pop(_name(event), None)
            derived = min(ongoing.values(), default=end)
            if state.max_read_offset != derived or derived < before:
                found = f"{state.max_read_offset}, not {derived}, after {before}"
                yield f"{topic}: after event {number} the max-read offset is {found}"
                break
            before = derived


def one_transaction_holds_a_message(run: Evidence, past: TransactionEvidence) -> Iterator[str]:
    """I4: no message is pending in two transactions, nor pending and acknowledged; what is pending
    is what a model made of sets has."""
    for (topic, name), events in past.subscriptions.items():
        if topic in past.partitions:
            sizes = tuple(len(entry.contents) for entry in past.partitions[topic].entries)
            for fault in holders_are_one(events, sizes):
                yield f"{name} of {topic}: {fault}"


def aborted_acks_leave_nothing(run: Evidence, past: TransactionEvidence) -> Iterator[str]:
    """I5: after an abort a subscription's state is what it were if the transaction had never
    acknowledged anything."""
    for (topic, name), events in past.subscriptions.items():
        for fault in aborts_leave_nothing(events):
            yield f"{name} of {topic}: {fault}"


def verdicts_never_change(run: Evidence, past: TransactionEvidence) -> Iterator[str]:
    """I6: a transaction is decided once, and its participants apply that verdict."""
    verdicts = past.verdicts()
    for number, events in past.decisions.items():
        decided = Counter(e.sequence for e in events if isinstance(e, TransactionDecided))
        for sequence, times in decided.items():
            if times > 1:
                yield f"({number},{sequence}) was decided {times} times"
    participants = {topic: known.events for topic, known in past.partitions.items()}
    for where, events in [*participants.items(), *past.subscriptions.items()]:
        for event in events:
            if isinstance(event, TransactionEnded | TransactionAcksEnded):
                verdict = verdicts.get(_name(event))
                if verdict is not event.commit:
                    yield f"{where} ended {_name(event)} as {event.commit}; it is {verdict}"


def every_transaction_ends(run: Evidence, past: TransactionEvidence) -> Iterator[str]:
    """I7. After the calm no transaction is open or ending, and no participant has an unfinished
    part of one."""
    for number, state in past.states.items():
        for sequence, known in state.unfinished.items():
            yield f"({number},{sequence}) is {known.status} in the end"
    for topic, partition in past.partitions.items():
        for txn in partition.state.transactions.ongoing:
            yield f"{txn} is ongoing in {topic} in the end"
    for (topic, name), events in past.subscriptions.items():
        if left := still_pending(events):
            yield f"{left} are pending in {name} of {topic} in the end"


def repeated_answers_are_the_same(run: Evidence, past: TransactionEvidence) -> Iterator[str]:
    """I8. Every request to end a transaction gets the same verdict, also after lost answers. No
    transaction becomes unknown."""
    verdicts = past.verdicts()
    for time, _, note in run.history.of("txn answered"):
        txn, done = note["txn"], note["done"]
        if done is not None and verdicts.get(txn) is not done:
            yield f"{time} s: {txn} was said to be {done}; it is {verdicts.get(txn)}"
        if note["error"] == FORGOTTEN:
            yield f"{time} s: {txn} was said not to exist"


def ids_are_unique(run: Evidence, past: TransactionEvidence) -> Iterator[str]:
    """I9: a coordinator's sequences are dense, over any crash, and never given twice; what a client
    was given is durable."""
    begun: set[str] = set()
    for number, events in past.decisions.items():
        given = [event.sequence for event in events if isinstance(event, TransactionBegun)]
        if given != list(range(1, len(given) + 1)):
            yield f"coordinator {number} gave {given}"
        begun |= {str(TransactionId(number, sequence)) for sequence in given}
    clients = Counter(note["txn"] for _, _, note in run.history.of("txn begun"))
    for txn, times in clients.items():
        if times > 1:
            yield f"{txn} was given to clients {times} times"
        if txn not in begun:
            yield f"{txn} was given to a client, and its coordinator doesn't know it"


def deletions_block_no_end(run: Evidence, past: TransactionEvidence) -> Iterator[str]:
    """I10. A transaction whose topic or subscription was deleted ends."""
    deleted = {
        (f"persistent://{note['topic']}", note["subscription"])
        for _, _, note in run.history.of("admin done")
        if note["what"] in ("delete topic", "delete subscription")
    }
    for number, events in past.decisions.items():
        had: set[int] = set()
        for event in events:
            names: list[tuple[str, str]] = []
            if isinstance(event, PartitionsJoined):
                names = [(topic, "") for topic in event.topics]
            elif isinstance(event, SubscriptionsJoined):
                names = [(each.topic, each.subscription) for each in event.subscriptions]
            if deleted.intersection(names):
                had.add(event.sequence)
        for sequence in had & set(past.states[number].unfinished):
            yield f"({number},{sequence}) doesn't end; a participant was deleted"


def coordinators_have_serial_histories(run: Evidence, past: TransactionEvidence) -> Iterator[str]:
    """I11: every prefix of a coordinator's journal is one of a serial history: each transaction is
    begun, joined, decided, finished, in this order.

    That replay of any prefix is what was live is compared at every frame.
    """
    steps = (TransactionBegun, (PartitionsJoined, SubscriptionsJoined), TransactionDecided)
    for number, events in past.decisions.items():
        reached: dict[int, int] = {}
        for event in events:
            for step, kind in enumerate((*steps, TransactionFinished)):
                if isinstance(event, kind):
                    at = reached.get(event.sequence, -1)
                    legal = step == at + 1 or (step, at) in ((1, 1), (2, 0))
                    if not legal:
                        yield f"({number},{event.sequence}): {kind} after step {at}"
                    reached[event.sequence] = step


def nothing_is_visible_before_its_commit(run: Evidence, past: TransactionEvidence) -> Iterator[str]:
    """A transaction's message is first delivered after its coordinator's decision is durable."""
    decided: dict[str, float] = {}
    unsure: dict[tuple[str, str], float] = {}
    newest: dict[str, str] = {}
    for time, kind, note in run.history.of("deciding", "decided", "activate"):
        if kind == "activate":
            newest[note["node"].partition("#")[0]] = note["node"]
            continue
        for txn in note["txns"]:
            if kind == "deciding":
                unsure[txn, note["node"]] = time
            elif newest[note["node"].partition("#")[0]] == note["node"]:
                # Else its successor has found it long ago.
                unsure.pop((txn, note["node"]), None)
                decided.setdefault(txn, time)
    for (txn, _), time in unsure.items():  # it crashed, and the decision may be durable
        decided[txn] = min(time, decided.get(txn, math.inf))
    for time, subscription, topic, entry in _deliveries(run, past):
        if time < decided.get(str(entry.txn), math.inf):
            at = decided.get(str(entry.txn))
            yield f"{time} s: {subscription} of {topic} got {entry.contents}, decided at {at}"


def pending_messages_are_not_delivered(run: Evidence, past: TransactionEvidence) -> Iterator[str]:
    """Messages acknowledged individually in an open transaction aren't delivered to later
    consumers. Subscriptions that were moved or deleted are exempt."""
    moved = {note["subscription"] for _, _, note in run.history.of("seek")}
    ended: dict[str, float] = {}
    for time, _, note in run.history.of("deciding"):
        for txn in note["txns"]:
            ended.setdefault(txn, time)
    pending: dict[tuple[str, str, int, int], list[tuple[float, int, str]]] = defaultdict(list)
    sessions: dict[tuple[int, int], tuple[float, str, str]] = {}
    for time, kind, note in run.history.of("acked in transaction", "subscribe", "deliver"):
        if kind == "subscribe":
            session = (time, note["subscription"], note["topic"])
            sessions[note["connection"], note["consumer"]] = session
        elif kind == "acked in transaction":
            where = (note["subscription"], note["topic"], note["ledger"], note["entry"])
            if not note["cumulative"] and note["subscription"] not in moved:
                pending[where].append((time, note["index"], note["txn"]))
        else:
            began, *whose = sessions[note["connection"], note["consumer"]]
            where = (whose[0], whose[1], note["ledger"], note["entry"])
            for at, index, txn in pending[where]:
                open_ = index < 0 or note["open"] >> index & 1
                if open_ and at < began and time < ended.get(txn, math.inf):
                    yield f"{time} s: {where} came, {index} of it is pending in {txn}"


def nothing_joins_after_the_end(run: Evidence, past: TransactionEvidence) -> Iterator[str]:
    """A partition takes nothing of a transaction that has ended there."""
    for topic, known in past.partitions.items():
        ended: set[str] = set()
        for event in known.events:
            if isinstance(event, TransactionEnded):
                ended.add(_name(event))
            elif isinstance(event, EntryAppended) and event.txn_sequence:
                name = str(TransactionId(event.txn_coordinator, event.txn_sequence))
                if name in ended:
                    yield f"{topic} took a message of {name} after its end"


def messages_are_in_their_transactions(run: Evidence, past: TransactionEvidence) -> Iterator[str]:
    """Every message is stored in the transaction that it was sent in, or in none."""
    sent = {note["content"]: note.get("txn") for _, _, note in run.history.of("send")}
    for topic, known in past.partitions.items():
        if topic not in run.logs:
            continue
        for entry in known.entries:
            for content in entry.contents:
                if sent[content] != entry.txn:
                    yield f"{content} of {topic} is in {entry.txn}"


def failed_transactions_are_not_committed(
    run: Evidence, past: TransactionEvidence
) -> Iterator[str]:
    """No transaction is committed in which an operation failed before."""
    verdicts = past.verdicts()
    for time, _, note in run.history.of("txn failed"):
        if verdicts.get(note["txn"]):
            yield f"{note['txn']} is committed; at {time} s {note['what']} failed in it"


def _committed(past: TransactionEvidence, topic: str) -> Iterator[tuple[Stored, PartitionPast]]:
    verdicts = past.verdicts()
    for name, known in past.partitions.items():
        if name.partition("-partition-")[0] == f"persistent://{topic}":
            for entry in known.entries:
                if entry.txn is None or verdicts.get(entry.txn):
                    yield entry, known


def results_are_exactly_once(run: Evidence, past: TransactionEvidence) -> Iterator[str]:
    """Every message of the source has one committed result, or is among the dead letters; at most
    one if it expired.

    If it is acknowledged cumulatively, at least one: that claims no message for oneself, so
    another consumer that got it meanwhile may commit a result as well.
    """
    several = any(note["cumulative"] for _, _, note in run.history.of("transforming"))
    of = {note["content"]: note.get("of") for _, _, note in run.history.of("send")}
    results = Counter(
        of[content] for entry, _ in _committed(past, RESULTS) for content in entry.contents
    )
    wanted: set[str] = set()
    for entry, known in _committed(past, SOURCE):
        excused = run.excused.get((WORKERS, known.topic), set())
        dead = dead_lettered(run.letters, WORKERS, known.topic)
        for content in entry.contents:
            wanted.add(content)
            times = results[content] + (content in dead)
            if (times > 1 and not several) or (not times and content not in excused):
                yield f"{content} of {known.topic} has {times} results"
    if strange := sorted(str(content) for content in set(results) - wanted):
        yield f"there are results of {strange}"


def transfers_are_whole(run: Evidence, past: TransactionEvidence) -> Iterator[str]:
    """The total over all accounts never changes: both sides of a transfer count, or none. The
    reader of both topics finds the same in the end."""
    sides = {note["content"]: note for _, _, note in run.history.of("send") if "amount" in note}
    stored = {
        text
        for topic in ACCOUNTS
        for entry, _ in _committed(past, topic)
        for text in entry.contents
    }
    newest: dict[str, int] = defaultdict(int)
    for _, _, note in run.history.of("read"):
        newest[note["by"]] = max(newest[note["by"]], note["life"])
    topics = {f"persistent://{topic}" for topic in ACCOUNTS}
    read = {
        note["content"]
        for _, _, note in run.history.of("read")
        if note["topic"] in topics and note["life"] == newest[note["by"]]
    }
    views = {"stored": stored}
    if not any(run.trimmed.get(topic) for topic in topics):
        views["read"] = read
    for how, contents in views.items():
        transfers: dict[str, list[int]] = defaultdict(list)
        for content in contents:
            transfers[str(sides[content]["txn"])].append(sides[content]["amount"])
        for txn, amounts in sorted(transfers.items()):
            if len(amounts) != 2 or sum(amounts):
                yield f"of the transfer {txn} {amounts} are {how}"


TRANSACTION_CHECKERS: tuple[Told, ...] = (
    delivered_only_if_committed,
    committed_messages_are_not_filtered,
    max_read_is_as_derived,
    one_transaction_holds_a_message,
    aborted_acks_leave_nothing,
    verdicts_never_change,
    every_transaction_ends,
    repeated_answers_are_the_same,
    ids_are_unique,
    deletions_block_no_end,
    coordinators_have_serial_histories,
    nothing_is_visible_before_its_commit,
    pending_messages_are_not_delivered,
    nothing_joins_after_the_end,
    messages_are_in_their_transactions,
    failed_transactions_are_not_committed,
    results_are_exactly_once,
    transfers_are_whole,
)


def judge_transactions(run: Evidence, past: TransactionEvidence) -> list[str]:
    """Everything that these checkers have to say, a few lines of each."""
    faults = []
    for checker in TRANSACTION_CHECKERS:
        found = [f"{checker.__name__}: {fault}" for fault in checker(run, past)]
        faults += found[:3]
    return faults
