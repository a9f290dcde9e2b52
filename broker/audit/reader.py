"""Reads the records of the audit log, newest first, page by page.

A change has two records: one before it begins, without an outcome, and one after it has ended. A
refused request has only the second one. The second one is complete, so the first one is skipped if
the second one was met.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from velaray.actors.machine import Reason
from velaray.broker.audit.topic import find_audit_topic
from velaray.broker.partition.messages import EntriesBefore, Place
from velaray.events.ids import INT64_MAX
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import RemoteError

AT_ONCE = 200
"""Entries that one request to the log returns at most."""
SCAN_RECORDS = 20_000
"""Records that one page reads at most."""
_ENDED = 100
"""Ids that the name of a page holds at most."""

Record = dict[str, Any]


class InvalidPageError(ValueError):
    """A text that names no page."""


@dataclass(slots=True)
class Page:
    """Where a page begins: before record ``index`` of the entry at ``place``; None: at the newest
    record. ``ended`` has the changes whose second record was met, and whose first one wasn't."""

    place: Place | None = None
    index: int = 0
    ended: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The name of the page, for `Page.of`."""
        assert self.place is not None
        where = ":".join(map(str, (*self.place, self.index)))
        return f"{where};{','.join(self.ended[-_ENDED:])}"

    @classmethod
    def of(cls, text: str) -> Page:
        """The page of this name; "": the newest one. Raises `InvalidPageError`."""
        if not text:
            return cls()
        where, _, ended = text.partition(";")
        parts = where.split(":")
        if len(parts) != 3 or not all(each.isascii() and each.isdigit() for each in parts):
            raise InvalidPageError(f"not a page of the audit log: {text[:80]!r}")
        ledger, entry, index = map(int, parts)
        if max(ledger, entry, index) >= INT64_MAX:
            raise InvalidPageError(f"not a page of the audit log: {text[:80]!r}")
        return cls((ledger, entry), index, ended.split(",") if ended else [])


class _Stored(NamedTuple):
    place: Place
    number: int
    published_ms: int
    record: Record


async def _newest_first(actor_system: ActorSystem, page: Page) -> AsyncIterator[_Stored]:
    try:
        key = await find_audit_topic(actor_system)
    except RemoteError as error:
        if error.kind == Reason.NOT_FOUND:
            return  # nothing was ever recorded
        raise
    # The page may begin within an entry.
    before = None if page.place is None else (page.place[0], page.place[1] + 1)
    while True:
        found = await actor_system.request(key, EntriesBefore(before, AT_ONCE))
        for entry in found:
            place = entry["id"][0], entry["id"][1]
            records = json.loads(entry["payload"])
            end = page.index if place == page.place else len(records)
            for index in reversed(range(min(end, len(records)))):
                yield _Stored(place, index, entry["publish_time"], records[index])
        if not found:
            return
        before = found[-1]["id"][0], found[-1]["id"][1]


async def read_page(
    actor_system: ActorSystem,
    page: Page,
    wanted: Callable[[Record], bool],
    since_ms: int,
    most: int,
) -> tuple[list[Record], Page | None]:
    """The newest ``most`` records of a page that are ``wanted`` and began at ``since_ms`` or later;
    and the page after them, None at the end.

    A page has fewer records if the limit of one reading was reached. Raises what
    `ActorSystem.request` raises.
    """
    found: list[Record] = []
    ended = dict.fromkeys(page.ended)
    scanned = 0
    async for stored in _newest_first(actor_system, page):
        if stored.published_ms < since_ms:
            return found, None
        scanned += 1
        record, name = stored.record, stored.record["id"]
        if record["outcome"] is None and name in ended:
            del ended[name]
        else:
            if record["outcome"] is not None and record["begun"]:
                ended[name] = None
            if record["atMs"] >= since_ms and wanted(record):
                found.append(record)
        if len(found) >= most or scanned >= SCAN_RECORDS:
            return found, Page(stored.place, stored.number, list(ended))
    return found, None
