"""What a refusal says of a topic that doesn't exist: the topics with a similar name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from velaray.events.ids import TopicName

NAMES = 3
"""How many names a refusal proposes."""


def missing_topic(topic: TopicName, names: Iterable[str]) -> str:
    """The text of the refusal. ``names`` are the full names of its namespace's topics."""
    base = topic.topic
    # Full names have their beginning in common, which would make all of them similar.
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
