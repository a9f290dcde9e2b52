"""What must hold of dead letters; checkers as in `tests.sim.checkers`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.sim.checkers import Evidence

SUFFIX = "-DLQ"
KEEPER = "x-keeper"
"""A subscription of each dead-letter topic, so that nothing of it is trimmed."""


def is_dead_letter_topic(topic: str) -> bool:
    """Whether a topic holds dead letters."""
    return topic.endswith(SUFFIX)


def dead_lettered(letters: Mapping[str, Any], subscription: str, topic: str) -> set[str]:
    """What of a topic partition is among the dead letters of one subscription."""
    whole = topic.partition("-partition-")[0]
    log = letters.get(f"{whole}-{subscription}{SUFFIX}", {})
    return {content for contents in log.values() for content in contents}


def dead_letters_are_moved_once(run: Evidence) -> Iterator[str]:
    """No message is twice among the dead letters of a subscription, or there without having been
    published; not judged of subscriptions that were moved back.
    """
    moved = {note["subscription"] for _, _, note in run.history.of("seek")}
    sent = run.sent()
    for topic, log in sorted(run.letters.items()):
        if any(topic.endswith(f"-{subscription}{SUFFIX}") for subscription in moved):
            continue
        found = Counter(content for contents in log.values() for content in contents)
        for content, times in sorted(found.items()):
            if times > 1 or content not in sent:
                yield f"{content} is {times} times in {topic}"


def poison_becomes_a_dead_letter(run: Evidence) -> Iterator[str]:
    """Messages that no consumer could process are dead letters. Exceptions: a skip, a move back, or
    the deletion of the topic. Messages that the topic holds in the end weren't deleted.
    """
    excused = {note["subscription"] for _, _, note in run.history.of("seek")}
    excused |= {
        note["subscription"]
        for _, _, note in run.history.of("admin")
        if note["what"] in ("skip", "skip all")
    }
    deleted, sent = run.horizons("delete topic"), run.sent()
    held = {
        topic: {text for found in log.values() for text in found} for topic, log in run.logs.items()
    }
    for time, _, note in run.history.of("poison"):
        subscription, topic, content = note["subscription"], note["topic"], note["content"]
        if subscription in excused or topic not in run.logs or run.losses():
            continue
        gone = content not in held[topic]
        whole = topic.partition("-partition-")[0]
        if gone and sent[content] <= deleted.get((whole, ""), -1):
            continue
        if content not in dead_lettered(run.letters, subscription, topic):
            yield f"{content} of {topic}, poison to {subscription} at {time} s, is nowhere"
