"""The audit log: the changes that were made through the admin interface."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from typing_extensions import TypedDict

from velaray.client.admin.calls import call
from velaray.client.admin.connection import ModeT, Resource
from velaray.client.admin.operations import V2, AnyObject, Parameter, Query, Whole, reads


class Outcome(StrEnum):
    """What became of a change."""

    DONE = "done"
    REFUSED = "refused"
    """Nothing was changed."""
    FAILED = "failed"
    """It may have taken effect."""
    ELSEWHERE = "elsewhere"
    """The client was sent to the home cluster of the tenant."""


class AuditRecord(TypedDict):
    """One change. ``begun`` is false for a request that was refused before it began.

    ``outcome`` is None while the change is under way, and if the process ended meanwhile.
    """

    id: str
    atMs: int
    role: str
    originalRole: str
    authentication: str
    address: str
    client: str
    operation: str
    target: str
    parameters: AnyObject
    begun: bool
    outcome: str | None
    status: int | None
    reason: str
    endedMs: int | None


class AuditPage(TypedDict):
    """Some records, newest first, and the name of the next page; None at the end."""

    records: list[AuditRecord]
    next: str | None


SINCE = Parameter("since", Whole, 0, "Only changes that began at this time (ms) or later.")
ROLE: Parameter[str | None] = Parameter("role", str, None, "Only changes by this role.")
OPERATION: Parameter[str | None] = Parameter(
    "operation", str, None, "Only operations whose method and path have this text."
)
TARGET: Parameter[str | None] = Parameter(
    "target", str, None, "Only changes of something whose name has this text."
)
MOST = Parameter("most", Whole, 100, "Answer at most so many changes, up to 1000.")
PAGE = Parameter("page", str, "", "The page, as `next` of an answer names it.")

LIST = reads(f"{V2}/velaray/audit", AuditPage, SINCE, ROLE, OPERATION, TARGET, MOST, PAGE)


class Audit(Resource[ModeT]):
    """The record of the changes that were made through the admin interface."""

    @call
    async def __call__(
        self,
        *,
        since_ms: int = 0,
        role: str | None = None,
        operation: str | None = None,
        target: str | None = None,
        most: int = 100,
        page: str = "",
    ) -> dict[str, Any]:
        """Return ``records``, newest first, and in ``next`` the name of the next ``page``, None at
        the end. A page may have fewer than ``most`` records, or none.

        The filters: changes from ``since_ms`` (milliseconds since 1970) on; by a ``role``; with a
        text in the ``operation``, such as "terminate" or "DELETE"; with a text in the name of the
        ``target``.
        """
        query: Query = {
            SINCE: since_ms,
            ROLE: role,
            OPERATION: operation,
            TARGET: target,
            MOST: most,
            PAGE: page,
        }
        return dict(await self._ask(LIST, query=query))
