"""The partition machine: entries of other clusters, and producers that move here."""

from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from velaray.actors.machine import Reason
from velaray.actors.partition.interleaving import WINDOW
from velaray.actors.partition.machine import (
    Chunk,
    Duplicate,
    ExpireProducers,
    ForgetProducer,
    Forgotten,
    PartitionMachine,
    Publish,
    Published,
    Replicated,
    Terminate,
    last_sequence_id,
)
from velaray.actors.partition.producer_transfer import (
    Adopted,
    AdoptProducers,
    ProducerRow,
    read_rows,
    rows_of,
)
from velaray.actors.testing import drive, given
from velaray.events.events_pb2 import EntryAppended, LedgerOpened, ProducerRegistered
from velaray.events.ids import Position


def sent(
    entry,
    sequence_id=0,
    producer="p",
    cluster="east",
    ledger=7,
    dedup=False,
    after=None,
    **fields,
):
    """An entry that ``cluster`` has at (ledger, entry), sent behind the one at ``after``."""
    before = None if after is None else Position(ledger, after)
    stamp = Replicated(cluster, Position(ledger, entry), before)
    arguments = {"highest_sequence_id": 0, "messages": 1, **fields}
    return Publish(
        producer, sequence_id, blob=b"entry", deduplicate=dedup, replicated=stamp, **arguments
    )


def own(sequence_id, producer="p", highest=0, messages=1, chunk=None):
    return Publish(producer, sequence_id, highest, messages, b"entry", True, chunk)


def partition(**opened):
    return given(PartitionMachine(), LedgerOpened(ledger_id=100, epoch=1))


def stored(offset):
    return Published(offset, Position(100, offset), 1)


def test_a_replicated_entry_is_stored_with_its_source_position() -> None:
    (
        partition()
        .when(sent(3, 9), now_ms=5)
        .then(
            events=[
                ProducerRegistered(producer=1, name="p", at_ms=5, origin="east"),
                EntryAppended(producer=1, sequence_id=9, at_ms=5, source_ledger=7, source_entry=3),
            ],
            reply=stored(0),
            blob=b"entry",
        )
        .when(own(0))
        .then(reply=stored(1))
        .when(sent(4, 1))
        .then(reply=stored(2))
        .then_state(lambda state: state.origins.by_cluster["east"].offset_of(Position(7, 4)) == 2)
        .then_state(lambda state: state.origins.own(0, 3) == [(1, 2)])
    )


def test_an_entry_at_or_before_the_newest_of_its_cluster_is_a_duplicate() -> None:
    (
        partition()
        .when(sent(3, 5))
        .when(sent(3, 6))
        .then(events=[], reply=Duplicate(6))
        .when(sent(2, 7, producer="q"))
        .then(events=[], reply=Duplicate(7))
        .when(sent(2, 7, cluster="west"))
        .then(reply=stored(1))
        .when(sent(0, 0, ledger=8))
        .then(reply=stored(2))
        .when(sent(9, 0, ledger=7))
        .then(events=[], reply=Duplicate(0))
    )


def test_an_entry_whose_predecessor_is_not_stored_is_refused() -> None:
    subject = partition().when(sent(5, after=4)).then_refused(Reason.UNAVAILABLE)
    subject.when(sent(4, 7)).then(reply=stored(0))
    subject.when(sent(5, 8, after=4)).then(reply=stored(1))
    subject.when(sent(4, 7, after=3)).then(reply=Duplicate(7))


def test_sequence_ids_of_replicated_entries_are_ignored() -> None:
    (
        partition()
        .when(own(8))
        .when(sent(0, 8, dedup=True))
        .then(reply=stored(1))
        .when(sent(1, 3, dedup=True))
        .then(reply=stored(2))
        .when(own(9))
        .then(reply=stored(3))
        .then_state(lambda state: last_sequence_id(state, "p") == 9)
        .then_state(lambda state: state.remote_producers["east", "p"].last_sequence_id == 8)
        .when(ForgetProducer("p"))
        .then(reply=Forgotten(("p",)))
        .when(sent(2, 10))
        .then(reply=stored(4))
        .then_state(lambda state: state.remote_producers["east", "p"].last_sequence_id == 10)
    )


def test_a_terminated_topic_refuses_replicated_entries() -> None:
    history = partition().when(sent(0)).when(Terminate())
    history.when(sent(1)).then_refused(Reason.TERMINATED)
    history.when(sent(0)).then(reply=Duplicate(0))


def test_replication_positions_are_kept_when_silent_remote_producers_are_dropped() -> None:
    (
        partition()
        .when(sent(0), now_ms=10)
        .when(own(0), now_ms=20)
        .when(ExpireProducers(15, connected=frozenset("p")))
        .then(reply=Forgotten(("p",)))
        .then_state(lambda state: not state.remote_producers and list(state.producers) == ["p"])
        .when(sent(0), now_ms=30)
        .then(reply=Duplicate(0))
        .when(sent(1), now_ms=30)
        .then(reply=stored(2))
    )


# ---- adoption


def test_a_producer_that_moves_finds_its_sequence_ids() -> None:
    source = partition().when(own(7)).when(own(2, producer="q"))
    rows = read_rows([list(row) for row in rows_of(source.state)])
    target = partition().when(own(4)).when(AdoptProducers(rows), now_ms=50)
    target.then(reply=Adopted(2))
    target.when(own(7)).then(reply=Duplicate(7)).when(own(8)).then(reply=stored(1))
    target.when(own(2, producer="q")).then(reply=Duplicate(2))
    target.when(AdoptProducers(rows)).then(events=[], reply=Adopted(0))
    target.then_state(lambda state: last_sequence_id(state, "p") == 8)


def test_a_chunked_message_continues_where_the_other_cluster_stopped() -> None:
    source = partition().when(own(3, chunk=Chunk("u", 0, 3))).when(own(3, chunk=Chunk("u", 1, 3)))
    target = partition().when(AdoptProducers(rows_of(source.state)))
    target.when(own(3, chunk=Chunk("u", 1, 3))).then(reply=Duplicate(3))
    target.when(own(3, chunk=Chunk("u", 2, 3))).then(reply=stored(0))
    target.when(own(3, chunk=Chunk("u", 2, 3))).then(reply=Duplicate(3))
    target.when(AdoptProducers(rows_of(source.state))).then(events=[])


def test_batches_by_key_are_distinguished_after_a_move() -> None:
    source = partition().when(own(0, highest=9, messages=3)).when(own(1, highest=8, messages=7))
    target = partition().when(AdoptProducers(rows_of(source.state)))
    target.when(own(1, highest=8, messages=7)).then(reply=Duplicate(1))
    target.when(own(2, highest=5)).then(reply=stored(0))
    target.when(AdoptProducers(rows_of(source.state))).then(events=[])


def test_sequence_ids_of_an_unreachable_cluster_follow_from_its_replicated_entries() -> None:
    target = partition().when(sent(0, 5)).when(sent(1, 3, producer="q", cluster="west"))
    target.when(own(5)).then(reply=stored(2))
    target = partition().when(sent(0, 5)).when(AdoptProducers(origin="east"))
    target.then(reply=Adopted(1)).when(own(5)).then(reply=Duplicate(5))
    target.when(AdoptProducers(origin="west")).then(events=[], reply=Adopted(0))


def test_invalid_producer_rows_are_refused() -> None:
    partition().when(AdoptProducers([ProducerRow("", 0, 1)])).then_refused(Reason.INVALID)
    partition().when(AdoptProducers([ProducerRow("p", 0, -2)])).then_refused(Reason.INVALID)


PUBLISHES = st.lists(
    st.one_of(
        st.builds(own, st.integers(0, 9), st.sampled_from("pq")),
        st.builds(
            lambda first, messages: own(first, "r", first + first % 3, messages),
            *(st.integers(0, 9), st.integers(1, 3)),
        ),
        st.builds(
            # Messages of different sizes are different messages, so their uuids differ.
            lambda number, at, size: own(
                number, "p", chunk=Chunk(f"u{number}-{size}", at % size, size)
            ),
            *(st.integers(0, 9), st.integers(0, 3), st.integers(1, 4)),
        ),
        st.builds(
            sent,
            st.integers(0, 30),
            st.integers(0, 9),
            st.sampled_from("pq"),
            st.sampled_from(("east", "west")),
        ),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@examples(PUBLISHES, PUBLISHES)
def test_producer_state_transfer_is_idempotent_and_lowers_no_sequence_id(there, here) -> None:
    opened = LedgerOpened(ledger_id=100, epoch=1)
    source = drive(PartitionMachine(), [])
    for side, commands in ((source, there), (target := drive(PartitionMachine(), []), here)):
        side._apply(opened)
        for command in commands:
            side.when(command)

    def repeated(history):
        return [
            command
            for command in (*there, *here)
            if command.replicated is None
            and (command.chunk is None or command.chunk.chunks == 1)
            and isinstance(history.machine.decide(history.state, command, 0).reply, Duplicate)
        ]

    known = repeated(source) + repeated(target)
    before = {name: last_sequence_id(target.state, name) for name in "pqr"}
    rows = rows_of(source.state)
    target.when(AdoptProducers(rows))
    for name in "pqr":
        after = last_sequence_id(target.state, name)
        assert after == max(before[name], last_sequence_id(source.state, name))
    target.when(AdoptProducers(rows)).then(events=[])
    assert all(command in repeated(target) for command in known)


def test_transferred_producer_rows_above_the_window_are_applied_once() -> None:
    def row(first, last):
        return ProducerRow("p", 0, last, interleaved=(0, [(at, at) for at in range(first, last)]))

    target = (
        partition()
        .when(AdoptProducers([row(0, WINDOW)]))
        .when(AdoptProducers([row(WINDOW, WINDOW + 9)]))
    )
    target.then_state(lambda state: state.producers["p"].interleaving.floor == 9)
    target.when(AdoptProducers([row(0, WINDOW)])).then(events=[])
