"""Hashes of message keys: which partition a key goes to, and which Key_Shared consumer.

The partition of a key is the client's choice, so clients agree only if they use the same
scheme: ``hash(key) % partitions`` with a hash of 31 bits. The defaults differ: the C++ family
(Python, Node) takes `HashingScheme.BOOST`, Java and Go take `HashingScheme.JAVA_STRING`. Keys
are text and are hashed as UTF-8, except by Java's hash, which counts UTF-16 units.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import mmh3
from crc32c import crc32c

_MASK_31 = 0x7FFFFFFF
_MASK_32 = 0xFFFFFFFF
_MASK_64 = 0xFFFFFFFFFFFFFFFF

STICKY_HASH_RANGE = 65536
"""Key_Shared hashes are 1 to `STICKY_HASH_RANGE` - 1; 0 means "no hash"."""


class HashingScheme(IntEnum):
    """How a producer hashes keys to find their partition."""

    MURMUR3_32 = 0
    BOOST = 1
    JAVA_STRING = 2


def boost_hash(key: bytes) -> int:
    """``boost::hash<std::string>`` of Boost 1.82 and later, 64 bits.

    With ``mulx`` the exclusive or of both halves of a 128 bit product, q the 64 bit golden
    ratio and k = q * q mod 2^64: w = mulx(q, k), h = w ^ length; then for each 8 bytes v
    (little endian) and once for the 0 to 7 that are left (an integer of that many bytes):
    w += q, h ^= mulx(v + w, k). The hash is mulx(h + w, k).
    """
    weight = _mulx(_GOLDEN, _GOLDEN_SQUARE)
    hashed = weight ^ len(key)
    whole = len(key) & ~7
    for at in range(0, whole + 1, 8):
        word = int.from_bytes(key[at : at + 8], "little")
        weight = (weight + _GOLDEN) & _MASK_64
        hashed ^= _mulx((word + weight) & _MASK_64, _GOLDEN_SQUARE)
    return _mulx((hashed + weight) & _MASK_64, _GOLDEN_SQUARE)


_GOLDEN = 0x9E3779B97F4A7C15
_GOLDEN_SQUARE = 0xDF442D22CE4859B9


def _mulx(left: int, right: int) -> int:
    product = left * right
    return (product & _MASK_64) ^ (product >> 64)


def java_string_hash(key: str) -> int:
    """Java's ``String.hashCode()``, as an unsigned 32 bit number.

    The C++ client computes it over UTF-8 bytes instead: the two agree on ASCII keys only.
    """
    hashed = 0
    units = key.encode("utf-16-le", "surrogatepass")
    for at in range(0, len(units), 2):
        hashed = (31 * hashed + (units[at] | units[at + 1] << 8)) & _MASK_32
    return hashed


def murmur3_32(key: bytes) -> int:
    """Murmur3, 32 bits, seed 0, unsigned."""
    return mmh3.hash(key, 0, signed=False)


def partition_of(key: str, partitions: int, scheme: HashingScheme = HashingScheme.BOOST) -> int:
    """The partition, 0 to ``partitions`` - 1, that a message with ``key`` goes to."""
    if scheme is HashingScheme.BOOST:
        hashed = boost_hash(key.encode())
    elif scheme is HashingScheme.JAVA_STRING:
        hashed = java_string_hash(key)
    else:
        hashed = murmur3_32(key.encode())
    return (hashed & _MASK_31) % partitions


def topics_hash(names: Iterable[str]) -> str:
    """A hash by which clients detect changes of a namespace's list of topics.

    In hexadecimal, lowest byte first: some clients compute it too.
    """
    return crc32c(",".join(sorted(names)).encode()).to_bytes(4, "little").hex()


def sticky_hash(key: bytes) -> int:
    """The hash that decides which Key_Shared consumer gets a message with this key."""
    return (murmur3_32(key) & _MASK_31) % STICKY_HASH_RANGE or 1
