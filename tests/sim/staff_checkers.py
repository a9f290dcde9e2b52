"""Invariants of administrators' changes: answered changes persist across any crash.

A change with a doubtful attempt isn't judged. Neither is one during or after a broken connection
whose request may be carried out once more (`Evidence.late_s`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from tests.sim.checkers import Evidence, whole
from tests.sim.workload import PATTERN

_DOMAIN = "persistent://"


class _Known:
    """Facts that answers have confirmed: values by name, None where there is nothing."""

    def __init__(self, late_s: float) -> None:
        self._late_s = late_s
        self._values: dict[Any, Any] = {}
        self._since: dict[Any, float] = {}
        self._over: dict[Any, float] = {}
        self._surpassed: set[Any] = set()

    def begins(self, name: Any, time: float) -> None:
        """A change of ``name`` begins: its value is unknown until the end, and afterwards too if
        the change before may be carried out once more behind it."""
        self._since[name] = math.inf
        if time < self._over.get(name, -math.inf) + self._late_s:
            self._surpassed.add(name)
        else:
            self._surpassed.discard(name)

    def done(self, name: Any, value: Any, time: float, doubtful: bool) -> None:
        """It has ``value``, unless that is in doubt."""
        self._over[name] = time
        if not doubtful and name not in self._surpassed:
            self._values[name] = value
            self._since[name] = time

    def items(self, time: float) -> Iterator[tuple[Any, Any]]:
        """Facts that are certain now."""
        for name, value in self._values.items():
            if self._since[name] + self._late_s <= time:
                yield name, value


def _changes(note: dict[str, Any]) -> tuple[Any, Any] | None:
    """What a deed changes, and to what."""
    match note["what"]:
        case "create topic" | "grow":
            return ("topic", note["topic"]), note["value"]
        case "delete topic":
            return ("topic", note["topic"]), None
        case "set policy":
            return ("policy",), note["value"]
        case "remove policy":
            return ("policy",), None
        case "create subscription":
            return ("subscription", note["topic"], note["subscription"]), True
        case "delete subscription":
            return ("subscription", note["topic"], note["subscription"]), None
    return None


def administrators_see_their_changes(run: Evidence) -> Iterator[str]:
    """Reads after an answered change see the change."""
    known = _Known(run.late_s())
    for time, kind, note in run.history.of("admin", "admin done"):
        change = _changes(note)
        if kind == "admin":
            if change is not None:
                known.begins(change[0], time)
        elif change is not None:
            known.done(*change, time, note["doubtful"])
        elif note["status"] in (200, 204):
            yield from _compare(note, known, time)


def _compare(note: dict[str, Any], known: _Known, time: float) -> Iterator[str]:
    answer = note["answer"]
    for name, value in known.items(time):
        match name, note["what"]:
            case ("policy",), "read policy":
                found = answer == value
            case ("topic", topic), "list topics" if topic.startswith("public/staff/"):
                ours = {text for text in answer if whole(text) == _DOMAIN + topic}
                found = len(ours) == (0 if value is None else value or 1)
            case ("subscription", topic, subscription), "list subscriptions":
                if topic != note["topic"] or not subscription.startswith("x"):
                    continue
                found = (subscription in answer) == bool(value)
            case _:
                continue
        if not found:
            yield f"{time} s: {note['what']} answered {answer}, but {name} is {value}"


def nothing_is_stored_after_termination(run: Evidence) -> Iterator[str]:
    """A terminated topic ends with the message that the answer names."""
    sent = run.sent()
    for time, ends in _terminations(run):
        for name, end in ends.items():
            for place, contents in run.logs.get(name, {}).items():
                if place > (end["ledgerId"], end["entryId"]):
                    yield f"{contents} of {name} is stored at {place}, which ended at {end}"
                late = [content for content in contents if sent[content] > time]
                if late:
                    yield f"{late} of {name} was sent after {time} s, when it was terminated"


def terminations_last(run: Evidence) -> Iterator[str]:
    """In the end, a terminated topic reports its termination."""
    terminated = {note["topic"]: note["terminated"] for _, _, note in run.history.of("log")}
    for time, ends in _terminations(run):
        for name in ends:
            if not terminated.get(name, True):
                yield f"{name} was terminated at {time} s, and isn't any more"


def _terminations(run: Evidence) -> Iterator[tuple[float, dict[str, Any]]]:
    """When topics were terminated, and the last message of each of their partitions."""
    for time, _, note in run.history.of("admin done"):
        if note["what"] == "terminate" and note["status"] == 200:
            topic, answer = _DOMAIN + note["topic"], note["answer"]
            ends = answer if "ledgerId" not in answer else {"": answer}
            yield (
                time,
                {f"{topic}-partition-{at}" if at else topic: end for at, end in ends.items()},
            )


def patterns_find_every_topic(run: Evidence) -> Iterator[str]:
    """In the end, a pattern consumer is subscribed to every matching topic."""
    subscribed = {
        (note["subscription"], note["topic"]) for _, _, note in run.history.of("subscribe")
    }
    for _, _, note in run.history.of("pattern"):
        wanted = re.compile(note["topics"].removeprefix(PATTERN))
        for topic in run.logs:
            name = (note["subscription"], topic)
            if wanted.fullmatch(whole(topic)) and name not in subscribed:
                yield f"{name[0]} subscribed to {wanted.pattern} and not to {topic}"


STAFF_CHECKERS = (
    administrators_see_their_changes,
    nothing_is_stored_after_termination,
    terminations_last,
    patterns_find_every_topic,
)
