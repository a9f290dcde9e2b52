"""Buffers in pieces, for TLS."""

import pytest

from velaray.wire.connection import pieces


@pytest.mark.parametrize("sizes", [[], [0], [3], [10], [4, 6], [7, 7, 7], [1, 35, 2], [0, 20, 0]])
def test_pieces_are_the_same_bytes(sizes: list[int]) -> None:
    numbers = iter(range(256))
    buffers = [bytes(next(numbers) for _ in range(size)) for size in sizes]
    found = list(pieces(buffers, 10))
    assert b"".join(found) == b"".join(buffers)
    assert all(len(piece) == 10 for piece in found[:-1])
    assert all(1 <= len(piece) <= 10 for piece in found[-1:])


def test_a_large_buffer_is_not_copied_but_at_its_borders() -> None:
    head, large = b"head", memoryview(bytes(35))
    first, *rest = pieces([head, large], 10)
    assert first == head + bytes(6)
    assert all(piece.obj is large.obj for piece in rest)
