"""Assembly of chunked messages whose chunks arrive twice, never, or mixed."""

from hypothesis import given
from hypothesis import strategies as st

from velaray.client.chunks import Chunk, ChunkAssembler, cut


def chunks(uuid, pieces, first_entry=0):
    total = sum(map(len, pieces))
    return [
        Chunk(uuid, number, len(pieces), total, (1, first_entry + number), piece)
        for number, piece in enumerate(pieces)
    ]


@given(st.binary(max_size=500), st.integers(1, 60))
def test_chunks_are_reassembled(payload, size):
    assembler = ChunkAssembler(0)
    *before, last = chunks("a", [bytes(piece) for piece in cut(payload, size)])
    assert all(assembler.add(chunk) is None for chunk in before)
    whole = assembler.add(last)
    assert whole is not None and whole.payload == payload
    assert whole.entries == [(1, number) for number in range(len(before) + 1)]
    assert len(assembler) == 0 and assembler.take_abandoned() == []


def test_chunks_of_several_messages_may_interleave():
    assembler = ChunkAssembler(0)
    a, b = chunks("a", [b"1", b"2"]), chunks("b", [b"3", b"4"], 10)
    assert [assembler.add(chunk) for chunk in (a[0], b[0])] == [None, None]
    assert assembler.add(b[1]).payload == b"34"
    assert assembler.add(a[1]).payload == b"12"


def test_chunks_that_were_sent_twice_are_acknowledged_with_the_message():
    assembler = ChunkAssembler(0)
    first, second, third = chunks("a", [b"1", b"2", b"3"])
    assembler.add(first)
    assembler.add(second)
    assembler.add(first._replace(where=(1, 20)))
    assembler.add(second._replace(where=(1, 21)))
    whole = assembler.add(third._replace(where=(1, 22)))
    assert whole.payload == b"123"
    assert set(whole.entries) == {(1, 0), (1, 1), (1, 20), (1, 21), (1, 22)}
    assert whole.first == (1, 20)


def test_a_gap_abandons_all_chunks_of_its_message():
    assembler = ChunkAssembler(0)
    first, _, third = chunks("a", [b"1", b"2", b"3"])
    assembler.add(first)
    assert assembler.add(third) is None
    assert assembler.take_abandoned() == [(1, 0), (1, 2)]
    assert assembler.take_abandoned() == []


def test_the_oldest_incomplete_message_is_abandoned_first():
    assembler = ChunkAssembler(2)
    for number, uuid in enumerate("abc"):
        assembler.add(chunks(uuid, [b"1", b"2"], 10 * number)[0])
    assert len(assembler) == 2
    assert assembler.take_abandoned() == [(1, 0)]
    assert assembler.add(chunks("c", [b"1", b"2"], 20)[1]).payload == b"12"


def test_a_chunk_without_its_first_one_is_abandoned():
    assembler = ChunkAssembler(0)
    assert assembler.add(chunks("a", [b"1", b"2"])[1]) is None
    assert assembler.take_abandoned() == [(1, 1)]
