"""Retention marks: durable subscriptions that keep messages for a query of Spark's.

The source of a query has one on every partition that it reads. It moves after each batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

RETENTION_MARK = "velaray.retention-mark"
"""The property of a subscription that is a retention mark; its value is the kind of the query."""
SPARK = "spark"
_UNNAMED = re.compile(r"spark-[0-9a-f]{16}")


def is_mark(name: str, properties: Mapping[str, str]) -> bool:
    """Whether a subscription is a retention mark.

    Marks of versions before 0.2 have no property; they are recognised by the name that a source
    chooses if it isn't given one.
    """
    return RETENTION_MARK in properties or _UNNAMED.fullmatch(name) is not None
