"""Histograms of latencies, and their files in the formats of HdrHistogram.

Values are nanoseconds, from 0 to an hour, with three significant digits. Files: ``.hgrm`` is a text
table of percentiles in milliseconds; ``.hlog`` has a compressed histogram for each interval, whose
values are nanoseconds, the unit that HdrHistogram's tools expect.
"""

from __future__ import annotations

import math
import struct
import zlib
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import IO

MAX_NS = 3_600 * 10**9
"""Larger values are recorded as this one."""
_DIGITS = 3
_HALF_BITS = 10
_HALF = 1 << _HALF_BITS
"""Values below twice this have a bucket each; from there on the width of buckets doubles."""
_NS_PER_MS = 1_000_000
_TICKS = 5
"""Lines of an ``.hgrm`` for each halving of the distance to 100 %."""
_BUCKETS = (MAX_NS // (2 * _HALF)).bit_length() + 1
_COOKIE, _COMPRESSED_COOKIE = 0x1C849313, 0x1C849314


class Histogram:
    """Counts of values. Only buckets with values take memory."""

    __slots__ = ("_counts", "count")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0

    @property
    def max(self) -> int:
        """The largest value of the last bucket with values; 0 if empty."""
        return _largest(max(self._counts)) if self._counts else 0

    def record(self, value: int, count: int = 1) -> None:
        """Add a value ``count`` times; below 0 it counts as 0, which clocks that are set cause."""
        value = min(max(value, 0), MAX_NS)
        shift = max(value.bit_length() - _HALF_BITS - 1, 0)
        index = (shift << _HALF_BITS) + (value >> shift)
        self._counts[index] = self._counts.get(index, 0) + count
        self.count += count

    def add(self, other: Histogram) -> None:
        """Add all values of another histogram."""
        for index, count in other._counts.items():
            self._counts[index] = self._counts.get(index, 0) + count
        self.count += other.count

    def percentile(self, share: float) -> int:
        """The smallest value that at least ``share`` percent of all don't exceed; 0 if empty.

        It is the largest value of its bucket.
        """
        wanted, seen = max(math.ceil(self.count * share / 100), 1), 0
        for index in sorted(self._counts):
            seen += self._counts[index]
            if seen >= wanted:
                return _largest(index)
        return 0

    def mean(self) -> float:
        """The mean of the middles of the values' buckets; 0 if empty."""
        total = sum(_middle(index) * count for index, count in self._counts.items())
        return total / self.count if self.count else 0.0

    def deviation(self) -> float:
        """The standard deviation of the same; 0 if empty."""
        mean = self.mean()
        squares = sum((_middle(at) - mean) ** 2 * count for at, count in self._counts.items())
        return math.sqrt(squares / self.count) if self.count else 0.0

    def levels(self) -> Iterator[tuple[int, float, int]]:
        """The lines of an ``.hgrm``: value, level from 0 to 1, number of values up to it."""
        level, seen = 0.0, 0
        for index in sorted(self._counts):
            seen += self._counts[index]
            while level <= 100 * seen / self.count:
                yield _largest(index), level / 100, seen
                halvings = math.floor(math.log2(100 / (100 - level))) + 1
                level += 100 / (_TICKS * 2**halvings)
                if seen == self.count:
                    break
        if self.count:
            yield self.max, 1.0, self.count

    def encoded(self) -> str:
        """The histogram in HdrHistogram's compressed form, version 2, as text."""
        counts = b"".join(self._runs())
        fields = (len(counts), 0, _DIGITS, 1, MAX_NS, 1.0)
        plain = struct.pack(">iiiiqqd", _COOKIE, *fields) + counts
        packed = zlib.compress(plain)
        return b64encode(struct.pack(">ii", _COMPRESSED_COOKIE, len(packed)) + packed).decode()

    def _runs(self) -> Iterator[bytes]:
        """The counts of all buckets up to the last one with values; runs of zeros are negative."""
        following = 0
        for index in sorted(self._counts):
            zeros = index - following
            if zeros:
                yield _variable(2 * zeros - 1 if zeros > 1 else 0)
            yield _variable(2 * self._counts[index])
            following = index + 1


def _smallest(index: int) -> tuple[int, int]:
    """The smallest value of a bucket, and the bucket's width."""
    shift = max((index >> _HALF_BITS) - 1, 0)
    return (index - (shift << _HALF_BITS)) << shift, 1 << shift


def _largest(index: int) -> int:
    value, width = _smallest(index)
    return value + width - 1


def _middle(index: int) -> int:
    value, width = _smallest(index)
    return value + (width >> 1)


def _variable(number: int) -> bytes:
    """An unsigned number in groups of seven bits, the lowest first."""
    groups = bytearray()
    while number >= 0x80:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def percentile_table(histogram: Histogram) -> str:
    """The content of an ``.hgrm`` file, in milliseconds."""
    titles = ("Percentile", "TotalCount", "1/(1-Percentile)")
    lines = ["{:>12} {:>14} {:>10} {:>14}\n".format("Value", *titles)]
    for value, level, seen in histogram.levels():
        inverse = f" {1 / (1 - level):14.2f}" if level < 1 else ""
        lines.append(f"{value / _NS_PER_MS:12.3f} {level:2.12f} {seen:10d}{inverse}")
    mean, deviation = histogram.mean() / _NS_PER_MS, histogram.deviation() / _NS_PER_MS
    largest = histogram.max / _NS_PER_MS
    lines += [
        f"#[Mean    = {mean:12.3f}, StdDeviation   = {deviation:12.3f}]",
        f"#[Max     = {largest:12.3f}, Total count    = {histogram.count:12d}]",
        f"#[Buckets = {_BUCKETS:12d}, SubBuckets     = {2 * _HALF:12d}]",
    ]
    return "\n".join(lines) + "\n"


class HistogramLog:
    """Writes an ``.hlog`` file: histograms of intervals, each with a tag."""

    def __init__(self, file: IO[str], start_s: float) -> None:
        """``start_s``: seconds since 1970 at which the first interval begins."""
        self._file = file
        began = datetime.fromtimestamp(start_s, UTC).isoformat(" ", "milliseconds")
        file.write("#[Histogram log format version 1.3]\n")
        file.write(f"#[StartTime: {start_s:.3f} (seconds since epoch), {began}]\n")
        file.write(f"#[BaseTime: {start_s:.3f} (seconds since epoch)]\n")
        names = ("StartTimestamp", "Interval_Length", "Interval_Max")
        file.write(",".join(f'"{name}"' for name in (*names, "Interval_Compressed_Histogram")))
        file.write("\n")

    def write(self, tag: str, begin_s: float, length_s: float, histogram: Histogram) -> None:
        """Write one interval, which begins ``begin_s`` seconds after the first."""
        largest = histogram.max / _NS_PER_MS
        times = f"{begin_s:.3f},{length_s:.3f},{largest:.3f}"
        self._file.write(f"Tag={tag},{times},{histogram.encoded()}\n")
        self._file.flush()
