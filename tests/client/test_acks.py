"""The acknowledgements that an AckTracker sends, for any order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velaray.client.acks import AckTracker, PendingAck, bits_of, words
from velaray.client.exceptions import InvalidMessage
from velaray.client.message_id import MessageId


def in_batch(entry, index, size, ledger=1):
    return MessageId(-1, ledger, entry, index, batch_size=size)


def single(entry, ledger=1):
    return MessageId(-1, ledger, entry)


def sent(tracker):
    acks = tracker.take()
    return {ack.where: ack.bits for ack in acks.individual}, acks.cumulative


def test_a_single_message_is_sent_once():
    acks = AckTracker()
    assert acks.individual(single(5))
    assert sent(acks) == ({(1, 5): None}, None)
    assert sent(acks) == ({}, None)


@given(st.integers(1, 200).flatmap(lambda n: st.permutations(range(n))))
def test_a_batch_is_acknowledged_with_its_last_message_in_any_order(order):
    acks = AckTracker()
    acks.batch_arrived((1, 0), len(order))
    for index in order[:-1]:
        assert not acks.individual(in_batch(0, index, len(order)))
        assert sent(acks) == ({}, None)
    assert acks.individual(in_batch(0, order[-1], len(order)))
    assert sent(acks) == ({(1, 0): None}, None)
    assert acks.open_batches == 0


def test_batch_index_acks_name_the_open_messages():
    acks = AckTracker(batch_index_ack=True)
    acks.batch_arrived((1, 0), 3)
    acks.individual(in_batch(0, 1, 3))
    assert sent(acks) == ({(1, 0): 0b101}, None)
    acks.individual(in_batch(0, 0, 3))
    assert sent(acks) == ({(1, 0): 0b110}, None)  # the service knows of the other one
    acks.individual(in_batch(0, 2, 3))
    assert sent(acks) == ({(1, 0): None}, None)


def test_acknowledged_messages_are_not_handed_out_again():
    acks = AckTracker()
    assert acks.batch_arrived((1, 0), 4) == 0b1111
    acks.individual(in_batch(0, 2, 4))
    assert acks.batch_arrived((1, 0), 4) == 0b1011
    assert acks.batch_arrived((1, 0), 4, outstanding=0b0011) == 0b0011


@pytest.mark.parametrize("batch_index_ack", [False, True])
def test_a_batch_whose_rest_others_acknowledged_is_acknowledged_on_arrival(batch_index_ack):
    acks = AckTracker(batch_index_ack)
    acks.batch_arrived((1, 0), 4)
    acks.individual(in_batch(0, 2, 4))
    acks.individual(in_batch(0, 3, 4))
    acks.take()
    assert acks.batch_arrived((1, 0), 4, outstanding=0b1100) == 0
    assert sent(acks) == ({(1, 0): 0b0011}, None)
    assert acks.open_batches == 0


@pytest.mark.parametrize("batch_index_ack", [False, True])
def test_messages_pending_elsewhere_are_not_acknowledged_and_redelivered(batch_index_ack):
    acks = AckTracker(batch_index_ack)
    assert acks.batch_arrived((1, 0), 3, outstanding=0b110) == 0b110
    assert acks.batch_arrived((1, 0), 3, outstanding=0b001) == 0b001  # an abort returned it
    assert acks.individual(in_batch(0, 0, 3))
    assert sent(acks) == ({(1, 0): 0b110}, None)


@pytest.mark.parametrize("batch_index_ack", [False, True])
def test_acknowledging_the_received_part_of_a_batch_acknowledges_no_more(batch_index_ack):
    acks = AckTracker(batch_index_ack)
    acks.batch_arrived((1, 0), 3, outstanding=0b011)
    assert not acks.individual(in_batch(0, 0, 3))
    acks.take()
    assert acks.individual(in_batch(0, 1, 3))
    assert sent(acks) == ({(1, 0): 0b100}, None)
    assert acks.open_batches == 0
    acks.batch_arrived((1, 1), 2, outstanding=0b01)
    acks.cumulative(in_batch(1, 0, 2))
    assert sent(acks)[1] == ((1, 1), 0b10, 2)


def test_an_id_of_another_consumer_needs_its_batch_size():
    acks = AckTracker()
    assert not acks.individual(in_batch(7, 0, 2))
    assert acks.individual(in_batch(7, 1, 2))
    with pytest.raises(InvalidMessage, match="unknown size"):
        acks.individual(in_batch(8, 3, 0))


def test_a_cumulative_ack_within_a_batch_ends_before_the_batch():
    acks = AckTracker()
    acks.batch_arrived((1, 5), 3)
    assert acks.cumulative(in_batch(5, 1, 3)) == (1, 4)
    _, cumulative = sent(acks)
    assert (cumulative.where, cumulative.bits) == ((1, 4), None)
    assert acks.cumulative(in_batch(5, 2, 3)) == (1, 5)
    _, cumulative = sent(acks)
    assert (cumulative.where, cumulative.bits) == ((1, 5), None)


def test_a_cumulative_acknowledgement_is_sent_again_after_subscribing_again():
    """Another consumer's seek may have moved the subscription back in between."""
    acks = AckTracker()
    acks.cumulative(single(5))
    assert sent(acks)[1].where == (1, 5)
    acks.cumulative(single(3))
    acks.take()
    acks.subscribed_again()
    acks.cumulative(single(3))
    assert sent(acks)[1].where == (1, 3)


@pytest.mark.parametrize("batch_index_ack", [False, True])
def test_after_resubscribing_the_service_decides_which_messages_of_a_batch_are_open(
    batch_index_ack,
):
    """Who moved the subscription back wants all of the batch, half acknowledged before or not."""
    acks = AckTracker(batch_index_ack)
    acks.batch_arrived((1, 0), 4)
    acks.individual(in_batch(0, 0, 4))
    acks.take()
    acks.subscribed_again()
    assert acks.open_batches == 0
    assert acks.batch_arrived((1, 0), 4) == 0b1111
    acks.individual(in_batch(0, 1, 4))
    acks.take()
    acks.subscribed_again()
    assert acks.batch_arrived((1, 0), 4, outstanding=0b1101) == 0b1101


def test_only_unsent_acks_survive_resubscribing():
    acks = AckTracker(batch_index_ack=True)
    acks.batch_arrived((1, 0), 4)
    acks.individual(in_batch(0, 0, 4))
    assert sent(acks) == ({(1, 0): 0b1110}, None)
    acks.individual(in_batch(0, 1, 4))
    acks.subscribed_again()
    assert sent(acks) == ({(1, 0): 0b1101}, None)
    assert acks.batch_arrived((1, 0), 4) == 0b1101


def test_an_unsent_cumulative_ack_within_a_batch_survives_resubscribing():
    acks = AckTracker(batch_index_ack=True)
    acks.batch_arrived((1, 5), 4)
    acks.cumulative(in_batch(5, 1, 4))
    acks.subscribed_again()
    _, cumulative = sent(acks)
    assert (cumulative.where, cumulative.bits, cumulative.size) == ((1, 5), 0b1100, 4)
    assert acks.batch_arrived((1, 5), 4) == 0b1100


def test_a_batch_whose_delivery_was_forgotten_is_still_acknowledged_message_by_message():
    acks = AckTracker(batch_index_ack=True)
    acks.batch_arrived((1, 0), 2)
    acks.subscribed_again()
    acks.individual(in_batch(0, 0, 2))
    taken = acks.take()
    acks.subscribed_again()
    acks.put_back(taken)
    assert sent(acks) == ({(1, 0): 0b10}, None)
    acks.individual(in_batch(0, 1, 2))
    assert sent(acks) == ({(1, 0): 0b01}, None)


def test_a_cumulative_ack_within_a_batch_uses_batch_index_acks():
    acks = AckTracker(batch_index_ack=True)
    acks.batch_arrived((1, 5), 3)
    acks.cumulative(in_batch(5, 1, 3))
    _, cumulative = sent(acks)
    assert (cumulative.where, cumulative.bits, cumulative.size) == ((1, 5), 0b100, 3)


def test_a_cumulative_ack_never_moves_back_and_replaces_individual_ones():
    acks = AckTracker()
    for entry in range(10):
        acks.individual(single(entry))
    acks.cumulative(single(6))
    individual, cumulative = sent(acks)
    assert sorted(individual) == [(1, 7), (1, 8), (1, 9)]
    assert cumulative.where == (1, 6)
    acks.cumulative(single(3))
    assert sent(acks)[1].where == (1, 6)


def test_a_redelivered_message_repeats_the_last_unconfirmed_cumulative_ack():
    """A full disk may have refused an ack without a receipt. Confirmed acks aren't sent again."""
    acks = AckTracker()
    acks.cumulative(single(6))
    acks.take()
    acks.cumulative(single(2))
    assert sent(acks)[1].where == (1, 6)
    acks.durable(acks.take(receipt=True))
    acks.cumulative(single(2))
    assert sent(acks) == ({}, None)


def test_cumulative_acks_within_a_batch_ack_the_previous_entry_once():
    acks = AckTracker()
    acks.cumulative(in_batch(5, 0, 3))
    assert sent(acks)[1].where == (1, 4)
    acks.cumulative(in_batch(5, 1, 3))
    assert sent(acks) == ({}, None)


def test_a_refused_cumulative_ack_does_not_replace_a_later_one():
    acks = AckTracker()
    acks.cumulative(single(6))
    asked = acks.take(receipt=True)
    acks.cumulative(single(10))
    acks.take()
    acks.put_back(asked)
    assert sent(acks)[1].where == (1, 10)
    assert acks.take(receipt=True).cumulative.where == (1, 10)


def test_a_receipt_does_not_confirm_cumulative_acks_without_receipts():
    acks = AckTracker()
    acks.cumulative(single(6))
    assert sent(acks)[1].where == (1, 6)
    acks.cumulative(single(3))
    taken = acks.take(receipt=True)
    assert taken.cumulative.where == (1, 6)
    acks.put_back(taken)  # refused, and the unconfirmed ack was sent once more
    acks.take()
    acks.cumulative(single(6))
    assert acks.take(receipt=True) == taken
    acks.durable(taken)
    acks.cumulative(single(6))
    assert acks.take(receipt=True).cumulative is None


def test_acks_that_were_put_back_are_sent_again():
    acks = AckTracker()
    acks.individual(single(1))
    acks.cumulative(single(0))
    taken = acks.take()
    assert len(acks) == 0
    acks.put_back(taken)
    assert acks.take() == taken


def test_all_chunks_are_acknowledged_with_their_message():
    acks = AckTracker()
    acks.chunks_arrived((1, 9), [(1, 3), (1, 5), (1, 9)])
    assert acks.individual(single(9))
    assert sent(acks) == ({(1, 3): None, (1, 5): None, (1, 9): None}, None)


def test_a_reset_drops_all_acks():
    acks = AckTracker(batch_index_ack=True)
    acks.batch_arrived((1, 0), 4)
    acks.individual(in_batch(0, 0, 4))
    acks.cumulative(single(9))
    acks.reset()
    assert sent(acks) == ({}, None)
    assert acks.batch_arrived((1, 0), 4) == 0b1111


@given(st.integers(1, 300), st.data())
def test_words_and_bits_convert_back_and_forth(size, data):
    bits = data.draw(st.integers(0, (1 << size) - 1))
    encoded = words(bits, size)
    assert all(-(1 << 63) <= word < 1 << 63 for word in encoded)
    assert bits_of(encoded) == bits


def elsewhere(entry, **batch):
    """An id of a cluster whose ids are above those of the others here."""
    return MessageId(-1, 1 << 52, entry, **batch)


def test_acks_of_remote_ids_neither_cover_nor_are_covered_by_local_ones():
    tracker = AckTracker()
    tracker.cumulative(elsewhere(5))
    assert tracker.take().cumulative == PendingAck((1 << 52, 5))
    tracker.cumulative(MessageId(-1, 1, 3))
    tracker.cumulative(MessageId(-1, 1, 2))
    assert tracker.take().cumulative == PendingAck((1, 3))
    tracker.cumulative(elsewhere(6))
    tracker.cumulative(MessageId(-1, 1, 4))
    assert tracker.take().cumulative == PendingAck((1, 4))
    tracker.individual(MessageId(-1, 1, 7))
    tracker.cumulative(elsewhere(7))
    assert tracker.take().individual == [PendingAck((1, 7))]
