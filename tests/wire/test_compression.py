"""Every codec there and back, and no way to make a receiver allocate what it didn't agree to."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velaray.wire.compression import Compression, compress, decompress
from velaray.wire.errors import CompressionError
from velaray.wire.pulsar_pb2 import CompressionType

PACKED = [kind for kind in Compression if kind is not Compression.NONE]


def test_compression_types_match_the_protocol() -> None:
    assert {kind.name: kind.value for kind in Compression} == dict(CompressionType.items())


@given(st.sampled_from(Compression), st.binary(max_size=500), st.integers(1, 50))
def test_payloads_round_trip(kind: Compression, data: bytes, times: int) -> None:
    payload = data * times
    packed = compress(kind, memoryview(payload))
    assert decompress(int(kind), memoryview(packed), len(payload)) == payload


def test_golden_forms() -> None:
    assert decompress(Compression.LZ4, bytes.fromhex("1f6101000b506161616161"), 36) == (b"a" * 36)
    assert decompress(Compression.SNAPPY, bytes.fromhex("0308616263"), 3) == b"abc"
    assert compress(Compression.ZLIB, b"abc")[0] == 0x78
    assert compress(Compression.ZSTD, b"abc")[:4] == bytes.fromhex("28b52ffd")


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("claimed", [0, 1, 2999, 3001, 100_000])
def test_a_wrong_size_is_refused(kind: Compression, claimed: int) -> None:
    packed = compress(kind, b"abc" * 1000)
    with pytest.raises(CompressionError, match=kind.name):
        decompress(kind, packed, claimed)


@pytest.mark.parametrize("kind", PACKED)
def test_a_decompression_bomb_is_refused_before_it_is_expanded(kind: Compression) -> None:
    packed = compress(kind, bytes(1_000_000))
    with pytest.raises(CompressionError, match="over the limit of 1000"):
        decompress(kind, packed, 1_000_000, max_size=1000)
    with pytest.raises(CompressionError, match="doesn't decompress to 1000 bytes"):
        decompress(kind, packed, 1000, max_size=1000)


@pytest.mark.parametrize("kind", PACKED)
def test_truncated_data_is_refused(kind: Compression) -> None:
    packed = compress(kind, bytes(range(256)) * 4)
    with pytest.raises(CompressionError):
        decompress(kind, packed[: len(packed) // 2], 1024)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(CompressionError, match="type 9 is not known"):
        decompress(9, b"", 0)


@given(st.sampled_from(PACKED), st.binary(max_size=100), st.integers(0, 5000))
def test_garbage_is_refused_or_has_the_size(kind: Compression, data: bytes, size: int) -> None:
    with suppress(CompressionError):
        assert len(decompress(kind, data, size)) == size
