"""The log lines of a cluster's processes: format, level, and the facts that every line carries.

Modules log with Python's `logging`, below the logger ``velaray``. A process of a cluster calls
`configure_logs` once. In a program that runs a cluster itself, such as a test, the program's own
configuration of `logging` applies.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any

from velaray.events.ids import ActorKey

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

_logger = logging.getLogger("velaray")

_FOREIGN = ("_ray_timestamp_ns", "asctime", "message")
"""What Ray and other formatters add to the records of Python's `logging`."""
_NOTHING: Mapping[str, Any] = {}
_RECENT: deque[str] = deque(maxlen=500)
"""The last lines that this process has written."""
_FACTS: ContextVar[Mapping[str, Any]] = ContextVar("velaray_log_facts", default=_NOTHING)


class LogFormat(StrEnum):
    """The form of log lines."""

    CONSOLE = "console"
    """Text for people, with the facts at the end of the line."""
    JSON = "json"
    """A JSON object for each line."""


class LogLevel(StrEnum):
    """The least level of lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def with_facts(facts: Mapping[str, Any]) -> _WithFacts:
    """Within the block, log lines carry these facts, and so do those of tasks that start in it.

    The facts aren't copied: later changes of the mapping show in later lines.
    """
    return _WithFacts(facts)


class _WithFacts:
    """The block of `with_facts`; a generator would take ten times as long."""

    __slots__ = ("_facts", "_token")

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._facts = facts
        self._token: Token[Mapping[str, Any]]

    def __enter__(self) -> None:
        self._token = _FACTS.set(self._facts)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _FACTS.reset(self._token)


def facts_of(key: ActorKey) -> dict[str, Any]:
    """The facts of an actor's log lines: its key, and its topic if it has one."""
    facts = {"actor": key.text()}
    if key.topic:
        facts["topic"] = str(key.topic_name)
    return facts


def log_end(key: ActorKey, error: BaseException) -> None:
    """Log that an actor ends because of an error."""
    text = f"{key} stops: {type(error).__name__}: {error}"
    _logger.error("%s", text, extra=facts_of(key))


def configure_logs(form: LogFormat, level: LogLevel, **process: str) -> Callable[[], None]:
    """Write the log lines of this process to standard error, as of now.

    Lines of velaray have at least this level, and those of libraries the level "warning". Each
    line carries the facts of the ``process``. The result restores what applied before.
    """
    handler = _StandardError()
    handler.setFormatter(_formatter(form, process))
    root, velaray = logging.getLogger(), logging.getLogger("velaray")
    former = velaray.level
    root.addHandler(handler)
    velaray.setLevel(level.upper())

    def restore() -> None:
        root.removeHandler(handler)
        velaray.setLevel(former)

    return restore


def recent_lines() -> list[str]:
    """The last 500 lines that this process has written since `configure_logs`, oldest first."""
    return list(_RECENT)


class _StandardError(logging.Handler):
    """Writes to the standard error of the moment."""

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        _RECENT.append(text)
        try:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
        except OSError:  # its reader is gone; there is no other place to write that to
            return


def _formatter(form: LogFormat, process: Mapping[str, str]) -> logging.Formatter:
    # structlog takes a tenth of a second to load, and clients don't need it.
    from structlog import processors, stdlib
    from structlog.dev import ConsoleRenderer, plain_traceback

    def add_facts(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        for name in _FOREIGN:
            event.pop(name, None)
        for name, value in (*process.items(), *_FACTS.get().items()):
            event.setdefault(name, value)
        return event

    last: list[Processor]
    if form is LogFormat.JSON:
        renderer = processors.JSONRenderer(ensure_ascii=False, default=str)
        last = [processors.format_exc_info, renderer]
    else:
        colours = sys.stderr.isatty()
        last = [
            ConsoleRenderer(
                colors=colours, pad_event_to=0, pad_level=False, exception_formatter=plain_traceback
            )
        ]
    return stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            processors.TimeStamper(fmt="iso", utc=True),
            stdlib.add_log_level,
            stdlib.ExtraAdder(),
            add_facts,
        ],
        processors=[stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )
