"""Frames of RPC connections."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velaray.topology.frames import FrameError, FrameReader, frame

VALUES = st.lists(st.one_of(st.integers(0, 1 << 40), st.binary(max_size=40), st.none()), max_size=4)


@given(st.lists(VALUES, max_size=5), st.lists(st.integers(0, 300), max_size=6))
def test_values_arrive_whole_however_the_stream_is_cut(values: list[Any], cuts: list[int]) -> None:
    stream = b"".join(map(frame, values))
    reader, found = FrameReader(1000), []
    edges = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    for first, end in pairwise(edges):
        found += reader.feed(stream[first:end])
    assert found == values


def test_a_long_frame_is_refused_at_its_header() -> None:
    reader = FrameReader(10)
    assert list(reader.feed((10).to_bytes(4, "big")[:3])) == []
    with pytest.raises(FrameError, match="a frame has 11 bytes, and 10 are allowed"):
        list(reader.feed(b"\x0b"))


def test_a_damaged_frame_is_refused() -> None:
    with pytest.raises(FrameError, match="a frame is damaged"):
        list(FrameReader(10).feed((2).to_bytes(4, "big") + b"\xc4\x09"))
