"""Bugs of journals in an object store that the simulation of whole clusters finds.

Most of them are those of `tests.sim.mutants.host_logs`, which the simulation of logs alone finds as
well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.sim.mutants.host_logs import HOST_LOG_MUTANTS
from tests.sim.mutants.mutant import Mutant
from velaray.journal.objects import reading
from velaray.journal.objects.ended_logs import EndedLogs


def _count_the_seal_as_unneeded(original: Any) -> Any:
    async def needed(self: EndedLogs, incarnation: str, content: Any) -> int | None:
        found: int | None = await original(self, incarnation, content)
        return content.seal + 1 if found == content.seal else found

    return needed


def _read_only_parts(original: Any) -> Any:
    async def read_bytes(objects: Any, parts: Any, runs: Any, *place: Any) -> bytes:
        _, offset, length = place
        return await reading.read_parts(objects, parts, offset, length)

    return read_bytes


OF_HOST_LOGS = (
    "no-seal",
    "take-overwrites-the-tail",
    "remembered-seal",
    "list-before-the-copy",
    "no-copy",
    "no-look-at-the-floor",
    "floor-before-the-record",
    "floor-forgets-lost-journals",
    "merged-part-deleted-early",
    "record-without-comparing",
)
"""Those that few seeds of whole clusters find."""

MUTANTS: dict[str, Mutant] = {
    **{
        f"store-{name}": replace(HOST_LOG_MUTANTS[name], store=True, within=40)
        for name in OF_HOST_LOGS
    },
    "store-delete-the-seal": Mutant(
        "the SEAL of a log that nothing needs is deleted too",
        ((EndedLogs, "_needed", _count_the_seal_as_unneeded),),
        within=20,
        store=True,
    ),
    "store-read-only-parts": Mutant(
        "readers of a journal don't read what is in its owner's log",
        ((reading, "read_bytes", _read_only_parts),),
        within=20,
        store=True,
    ),
}
