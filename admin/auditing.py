"""The recording of changes in the audit log, around the handlers of all operations.

A change begins after its record is durable. Its outcome is recorded after it. See
`docs/decisions/0052-audit.md`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from aiohttp import web

from velaray.admin.audit_records import ended, reason_in, record_of
from velaray.admin.changes import is_change, may_change
from velaray.admin.erasure import digest_of
from velaray.admin.http import ACTOR_SYSTEM, AdminError, Handler, answer_errors
from velaray.broker.audit.writer import AuditAway, AuditWriter
from velaray.client.admin.audit import AuditRecord
from velaray.client.admin.namespaces import ERASE
from velaray.client.admin.operations import Operation
from velaray.topology.rpc import RemoteError

logger = logging.getLogger(__name__)

BEGIN_S = 30.0
"""How long a change waits for its record before it is refused. The first change of a cluster waits
until the host of the log has started."""
END_S = 5.0
"""How long the answer to a change waits for the record of its outcome."""
REFUSALS_PER_S = 20
"""Requests refused for lack of rights that a process records each second; others are counted."""

Check = Callable[[web.Request], Awaitable[None]]


class Audit:
    """The audit of the changes by one process's admin interface."""

    def __init__(self, writer: AuditWriter) -> None:
        self.writer = writer
        self._second, self._refusals = 0, 0
        self._left_out = 0

    async def begin(self, record: AuditRecord) -> None:
        """Make the record durable before its change begins.

        Raises `AdminError` (503) if the log doesn't confirm it in time: the change must not begin.
        """
        if self.writer.full:
            raise AdminError(503, f"nothing was changed: {self.writer.problem}; try again")
        try:
            await self.writer.confirmed(self.writer.add(record), BEGIN_S)
        except AuditAway as error:
            text = f"nothing was changed: {error}; try again"
            self.writer.add(ended(record, 503, text, record["atMs"]))
            raise AdminError(503, text) from error

    async def end(self, record: AuditRecord) -> None:
        """Record the outcome of a begun change. Without an answer of the log the record stays in
        memory until the log takes it."""
        try:
            await self.writer.confirmed(self.writer.add(record), END_S)
        except AuditAway as error:
            logger.warning("the outcome of %s isn't recorded yet: %s", record["operation"], error)

    def refused(self, record: AuditRecord, now_ms: int) -> None:
        """Record a request without the right, unless there are too many of them."""
        second = now_ms // 1000
        if second != self._second:
            self._second, self._refusals = second, 0
        self._refusals += 1
        if self._refusals > REFUSALS_PER_S or self.writer.full:
            self._left_out += 1
            return
        left_out, self._left_out = self._left_out, 0
        if left_out:
            more = f"{record['reason']} (before it, {left_out} refused requests weren't recorded)"
            record = {**record, "reason": more}
        self.writer.add({**record, "begun": False})


AUDIT: web.AppKey[Audit | None] = web.AppKey("audit", object)  # type: ignore[arg-type]


def audited(operation: Operation, check: Check, handler: Handler) -> Handler:
    """The handler, for clients whose rights ``check`` confirms; changes are recorded."""

    async def handle(request: web.Request) -> web.StreamResponse:
        audit = request.app[AUDIT]
        if audit is None or not is_change(operation, request):
            await check(request)
            return await handler(request)
        record = await record_of(operation, request, _now_ms(request))
        refusal = await _refusal(request, check)
        if refusal is not None:
            now_ms = _now_ms(request)
            audit.refused(ended(record, refusal.status, reason_in(refusal), now_ms), now_ms)
            return refusal
        if operation is ERASE:  # the record must not have what is erased
            return await answer_errors(request, partial(_erase, audit, record, handler))
        return await _recorded(audit, record, request, handler)

    async def checked(request: web.Request) -> web.StreamResponse:
        await check(request)
        return await handler(request)

    return handle if may_change(operation) else checked


def _now_ms(request: web.Request) -> int:
    return request.app[ACTOR_SYSTEM].clock_ms()


async def _refusal(request: web.Request, check: Check) -> web.StreamResponse | None:
    """The answer to a request without the right; None if it has the right."""
    passed = web.Response()

    async def checking(request: web.Request) -> web.StreamResponse:
        await check(request)
        return passed

    answer = await answer_errors(request, checking)
    return None if answer is passed else answer


async def _recorded(
    audit: Audit, record: AuditRecord, request: web.Request, handler: Handler
) -> web.StreamResponse:
    await audit.begin(record)
    status, reason = 500, "the handler failed"
    try:
        response = await answer_errors(request, handler)
        status, reason = response.status, reason_in(response)
    finally:
        # The end of the client's connection doesn't cancel the record.
        recording = asyncio.ensure_future(
            audit.end(ended(record, status, reason, _now_ms(request)))
        )
        await asyncio.shield(recording)
    return response


async def _erase(
    audit: Audit, record: AuditRecord, handler: Handler, request: web.Request
) -> web.StreamResponse:
    """Record an erasure with the HMAC of what is erased. Raises `JournalError`: nothing began."""
    try:
        parameters = {**record["parameters"], "digest": await digest_of(request)}
    except (AdminError, RemoteError):
        parameters = record["parameters"]  # the handler refuses it for the same reason
    return await _recorded(audit, {**record, "parameters": parameters}, request, handler)


def make_audit(app: web.Application) -> Audit | None:
    """The audit of an application; None if the cluster keeps no audit log."""
    actor_system = app[ACTOR_SYSTEM]
    settings = actor_system.config.audit
    return None if settings is None else Audit(AuditWriter(actor_system, settings))


async def stop_audit(app: web.Application) -> None:
    """Write what waits, for a limited time."""
    audit = app[AUDIT]
    if audit is not None:
        await audit.writer.close()
