"""The lag of a streaming query, from Spark's reports of its progress."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def lag(progress: Mapping[str, Any]) -> dict[str, int]:
    """Return how many entries of each topic partition the query hasn't read; a batch is one entry.

    ``progress`` is `StreamingQuery.lastProgress`, an element of `recentProgress`, or the progress
    of an event that a `StreamingQueryListener` gets. The ends are those when the batch was
    planned. A partition of several sources has the largest lag. Sources that aren't topics are
    left out.
    """
    found: dict[str, int] = {}
    for source in progress["sources"]:
        read, ends = (_entries(source.get(name)) for name in ("endOffset", "latestOffset"))
        for partition in read.keys() & ends.keys():
            behind = max(ends[partition] - read[partition], found.get(partition, 0))
            found[partition] = behind
    return dict(sorted(found.items()))


def _entries(offset: Any) -> dict[str, int]:
    """The number of entries before an offset of the source ``velaray``, by partition; empty for
    other offsets and for none."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except json.JSONDecodeError:
            return {}
    partitions = offset.get("partitions") if isinstance(offset, dict) else None
    if not isinstance(partitions, dict):
        return {}
    return {
        name: each["entries"]
        for name, each in partitions.items()
        if isinstance(each, dict) and isinstance(each.get("entries"), int)
    }
