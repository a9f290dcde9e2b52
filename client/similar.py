"""The text of an error for a missing topic, with topics of a similar name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from velaray.events.ids import TopicName

NAMES = 3
"""Number of names that the text proposes."""


def missing_topic(topic: TopicName, names: Iterable[str]) -> str:
    """Return the text of the error. ``names`` are the full names of the namespace's topics."""
    base = topic.topic
    # Compare without the common prefix, which would make all full names similar.
    known = {TopicName.parse(name).local: name for name in names}
    if base.local in known:
        return f"there is no topic {topic}: {base} has no such partition"
    near = [known[local] for local in get_close_matches(base.local, known, NAMES)]
    if near:
        return f"there is no topic {topic}; the nearest names are {', '.join(near)}"
    return (
        f"there is no topic {topic}, and {base.tenant}/{base.namespace} has none with a similar"
        " name"
    )
