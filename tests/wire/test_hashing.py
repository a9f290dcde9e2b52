"""Key hashes, against values that other implementations gave."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velaray.wire.hashing import (
    HashingScheme,
    java_string_hash,
    murmur3_32,
    partition_of,
    sticky_hash,
    topics_hash,
)

# What the official C++ client, version 4.2.0, chose among 1000 partitions.
OFFICIAL = {"a": 748, "ab": 382, "abc": 565, "abcd": 746, "abcde": 277, "abcdef": 48}


@pytest.mark.parametrize(("key", "partition"), OFFICIAL.items())
def test_boost_hash_partitions_match_the_official_client(key: str, partition: int) -> None:
    assert partition_of(key, 1000) == partition


# The values that the official clients' own tests agree on across languages.
@pytest.mark.parametrize(
    ("key", "hashed"), [("keykeykeykeykey1", 434058482), ("keykeykey2", 42978643)]
)
def test_java_string_hash(key: str, hashed: int) -> None:
    assert java_string_hash(key) & 0x7FFFFFFF == hashed
    assert partition_of(key, 97, HashingScheme.JAVA_STRING) == hashed % 97


def test_java_hashes_utf16_units() -> None:
    assert java_string_hash("\N{GRINNING FACE}") == 31 * 0xD83D + 0xDE00


@pytest.mark.parametrize(
    ("key", "hashed"),
    [("k1", 2110152746), ("k2", 1479966664), ("key1", 462881061), ("key02", 751761803)],
)
def test_murmur3(key: str, hashed: int) -> None:
    assert murmur3_32(key.encode()) & 0x7FFFFFFF == hashed
    assert partition_of(key, 97, HashingScheme.MURMUR3_32) == hashed % 97


def test_a_sticky_hash_is_murmur_within_the_range() -> None:
    assert sticky_hash(b"k1") == 2110152746 % 65536


@given(st.binary(max_size=20))
def test_a_sticky_hash_is_never_zero(key: bytes) -> None:
    assert 1 <= sticky_hash(key) < 65536


@given(st.text(max_size=30), st.integers(1, 100), st.sampled_from(HashingScheme))
def test_a_partition_exists(key: str, partitions: int, scheme: HashingScheme) -> None:
    assert 0 <= partition_of(key, partitions, scheme) < partitions


def test_the_hash_of_topics_depends_on_their_names_alone() -> None:
    # 0xe3069283 is CRC32C's check value: that of "123456789". Java clients print it like this.
    assert topics_hash(["123456789"]) == "839206e3"
    assert topics_hash([]) == "00000000"
    names = [
        "persistent://a/b/c",
        "persistent://a/b/d-partition-0",
        "persistent://a/b/\N{HONEYBEE}",
    ]
    assert topics_hash(names) == topics_hash(reversed(names)) == topics_hash([",".join(names)])
    assert topics_hash(names) != topics_hash(names[:2])
