"""Administration of stored ledgers and their deletion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import TypedDict

from velaray.client.admin.calls import call
from velaray.client.admin.connection import ModeT, Resource
from velaray.client.admin.operations import V3, AnyObject, Operation, reads

_LEDGERS = f"{V3}/ledgers"


class DeadLetters(TypedDict, total=False):
    """Deletions that were given up, by default all of them."""

    ids: list[str]


class Retried(TypedDict):
    """How many deletions are retried."""

    retried: int


class Forgotten(TypedDict):
    """How many deletions are removed from the list."""

    forgotten: int


AUDIT = reads(f"{_LEDGERS}/census", AnyObject)
REPAIR = Operation("POST", f"{_LEDGERS}/census/repair", answers={200: AnyObject})
GET = reads(f"{_LEDGERS}/{{ledger}}", AnyObject)
DEAD = reads(f"{_LEDGERS}/dlq", list[AnyObject])
RETRY_DEAD = Operation("POST", f"{_LEDGERS}/dlq/retry", body=DeadLetters, answers={200: Retried})
FORGET_DEAD = Operation(
    "POST", f"{_LEDGERS}/dlq/forget", body=DeadLetters, answers={200: Forgotten}
)


class Ledgers(Resource[ModeT]):
    """The ledgers of all journals."""

    @call
    async def audit(self) -> dict[str, Any]:
        """Compare the stored ledgers with the manifests and the queued deletions.

        Return ``ledgers`` and ``bytes`` by state in ``totals``, and by kind of actor and state in
        ``kinds``; up to 1000 names of each state except *listed* in ``ledgers``. An *orphan* is a
        ledger that no deletion is queued for, a *missing* one is listed but not stored. The
        journals in ``unreadable`` aren't counted; each has the reason.
        """
        return dict(await self._ask(AUDIT))

    @call
    async def repair(self) -> dict[str, Any]:
        """Queue the deletion of all orphans; return the audit, with their number in
        ``announced``."""
        return dict(await self._ask(REPAIR))

    @call
    async def get(self, ledger_id: int) -> dict[str, Any]:
        """Return where a ledger is, which journal owns it, and whether its deletion is queued.

        Raises `NotFound`.
        """
        return dict(await self._ask(GET, {"ledger": ledger_id}))

    @call
    async def dead(self) -> list[dict[str, Any]]:
        """Return the deletions that were given up and neither retried nor forgotten, each with its
        ``id``."""
        return list(await self._ask(DEAD))

    @call
    async def retry_dead(self, ids: Sequence[str] | None = None) -> int:
        """Retry deletions that were given up, by default all; return their number.

        Raises `NotFound` if an id is unknown.
        """
        return int((await self._ask(RETRY_DEAD, body=_ids(ids)))["retried"])

    @call
    async def forget_dead(self, ids: Sequence[str] | None = None) -> int:
        """Remove deletions that were given up from the list, by default all; return their number.

        Their ledgers stay stored. Raises `NotFound` if an id is unknown.
        """
        return int((await self._ask(FORGET_DEAD, body=_ids(ids)))["forgotten"])


def _ids(ids: Sequence[str] | None) -> dict[str, list[str]]:
    return {} if ids is None else {"ids": list(ids)}
