"""Log lines of a cluster, of either form, and their selection."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from velaray.events.ids import InvalidNameError, TopicName

LEVELS = "debug", "info", "warning", "error"
_FOR_PEOPLE = re.compile(r".*?(\d{4}-\d\d-\d\dT[\d:.]+Z) \[(\w+)\] ")
_FACT = re.compile(r"(?<= )(actor|process|topic)=('[^']*'|\S+)")


@dataclass(frozen=True, slots=True)
class Record:
    """A log line with the lines that continue it, such as those of a traceback."""

    time: str
    level: str
    facts: Mapping[str, Any]
    text: str


def _parsed(line: str) -> Record | None:
    """The record that begins with a line; None: the line continues another one."""
    start = line.find("{")
    if start >= 0:
        try:
            found = json.loads(line[start:])
        except ValueError:
            found = None
        if isinstance(found, dict) and {"event", "level", "timestamp"} <= found.keys():
            return Record(str(found["timestamp"]), str(found["level"]), found, line)
    began = _FOR_PEOPLE.match(line)
    if began is None:
        return None
    facts = {name: value.strip("'") for name, value in _FACT.findall(line)}
    return Record(began[1], began[2], facts, line)


class Lines:
    """Selects the lines of an actor, a topic or a process from a level on."""

    def __init__(self, name: str, level: str) -> None:
        self._name = name
        self._levels = LEVELS[LEVELS.index(level) :]
        self._topic = ""
        with suppress(InvalidNameError):  # else it is the name of an actor or a process
            self._topic = str(TopicName.parse(name))

    def records(self, lines: Iterable[str], process: str = "") -> Iterator[Record]:
        """The selected records. ``process`` wrote the lines, if it is known.

        Output without a level, such as that of a crash, belongs to the record before it. At the
        beginning of a process's output it is a record of its own.
        """
        whole = process == self._name
        last: Record | None = None
        begun = False
        for raw in lines:
            line = raw.rstrip("\n")
            record = _parsed(line)
            if record is not None:
                if last is not None:
                    yield last
                begun, last = True, record if self._selects(record, whole) else None
            elif last is not None:
                last = Record(last.time, last.level, last.facts, f"{last.text}\n{line}")
            elif whole and not begun and line and not line.startswith(":"):
                last = Record("", self._levels[-1], {}, line)
        if last is not None:
            yield last

    def _selects(self, record: Record, whole: bool) -> bool:
        level = "error" if record.level == "critical" else record.level
        return level in self._levels and (whole or self._is_about(record.facts))

    def _is_about(self, facts: Mapping[str, Any]) -> bool:
        topic = str(facts.get("topic", ""))
        return (
            self._name in (facts.get("actor"), facts.get("process"))
            or topic == self._topic != ""
            or (self._topic != "" and topic.startswith(f"{self._topic}-partition-"))
        )
