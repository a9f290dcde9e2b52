"""Routes of the admin interface for the offload of ledgers, in Pulsar's shape."""

from __future__ import annotations

from aiohttp import web

from velaray.admin.binding import Route, body_of, given
from velaray.admin.http import answer, ask_each, done, find_single, find_target
from velaray.broker.partition.messages import Offload, OffloadStatus
from velaray.client.admin import topics as operations

_WORST_FIRST = ("ERROR", "RUNNING", "NOT_RUN", "SUCCESS")


async def offload(request: web.Request) -> web.Response:
    """Begin to move sealed ledgers to the archive: those before the message id of the body. Without
    a body, all but the newest ones that have ``sizeThreshold`` bytes together, in every partition;
    409 while an offload runs."""
    body = body_of(request)
    if "ledgerId" in body:
        target = await find_single(request, "offloading the ledgers before a message")
        wanted = Offload(before=body["ledgerId"])
    else:
        target = await find_target(request)
        wanted = Offload(kept_bytes=given(request, operations.SIZE_THRESHOLD))
    await ask_each(request, target, wanted)
    return done()


async def status(request: web.Request) -> web.Response:
    """The status of the last offload; for several partitions, the worst one."""
    found = await ask_each(request, await find_target(request), OffloadStatus())
    worst = min(found, key=lambda each: _WORST_FIRST.index(each["status"]))
    told = {"status": worst["status"], "lastError": worst["last_error"]}
    if worst["status"] == "SUCCESS" and worst["first"] is not None:
        first = {"ledgerId": worst["first"], "entryId": 0, "partitionIndex": -1}
        return answer({**told, "firstUnoffloadedMessage": first})
    return answer(told)


ROUTES: tuple[Route, ...] = (
    Route(operations.OFFLOAD, offload),
    Route(operations.OFFLOAD_STATUS, status),
)
