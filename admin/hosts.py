"""Routes of the admin interface for the hosts that actors share."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from aiohttp import web

from velaray.admin.binding import Route, body_of, given
from velaray.admin.http import (
    AdminError,
    actor_system_of,
    answer,
    done,
)
from velaray.client.admin import hosts as operations
from velaray.events.ids import ActorKey, InvalidNameError, TopicName
from velaray.topology.host_control import HostControl, HostStatus
from velaray.topology.placement import group_of


def _control(request: web.Request) -> HostControl:
    control = actor_system_of(request).host_control
    if control is None:
        raise AdminError(
            412, "the actors of this cluster share no hosts: start it with --placement shared"
        )
    return control


def group_named(name: str) -> str:
    """The group of a topic, or of the actor with this key. Raises `InvalidNameError`."""
    if "://" not in name:
        try:
            return group_of(ActorKey.parse(name))
        except InvalidNameError:
            pass  # the short name of a topic
    return str(TopicName.parse(name))


def _row(status: HostStatus) -> dict[str, Any]:
    """A host as the interface describes it. Its connections are in the metrics."""
    found = asdict(status)
    del found["connections"]
    return found


async def list_hosts(request: web.Request) -> web.Response:
    """The hosts that run, with their actors."""
    return answer([_row(status) for status in await _control(request).hosts()])


async def list_silent(request: web.Request) -> web.Response:
    """The names of the hosts that were started and don't answer now."""
    return answer(await _control(request).silent())


async def log(request: web.Request) -> web.Response:
    """The last lines of a host's log."""
    return answer(await _control(request).log_lines(given(request, operations.NAME)))


async def get_host(request: web.Request) -> web.Response:
    """One host that runs."""
    name = request.match_info["host"]
    found = {status.name: status for status in await _control(request).hosts()}
    if name not in found:
        raise AdminError(404, f"no host {name!r} runs; these do: {', '.join(found)}")
    return answer(_row(found[name]))


async def move(request: web.Request) -> web.Response:
    """Move the actors of a topic, or another actor, to a host (default: the emptiest one)."""
    control, body = _control(request), body_of(request)
    return answer({"host": await control.move(group_named(body["name"]), body.get("host", ""))})


async def drain(request: web.Request) -> web.Response:
    """Move everything out of a host, and place nothing more in it."""
    return answer({"moved": await _control(request).drain(body_of(request)["host"])})


async def resume(request: web.Request) -> web.Response:
    """Place actors in a drained host again."""
    await _control(request).resume(body_of(request)["host"])
    return done()


async def restart(request: web.Request) -> web.Response:
    """Restart the process of a drained host with the installed version."""
    return answer(_row(await _control(request).restart(body_of(request)["host"])))


ROUTES: tuple[Route, ...] = (
    Route(operations.LIST, list_hosts),
    Route(operations.SILENT, list_silent),  # before names of hosts, which have a slash
    Route(operations.LOG, log),
    Route(operations.GET, get_host),
    Route(operations.MOVE, move),
    Route(operations.DRAIN, drain),
    Route(operations.RESUME, resume),
    Route(operations.RESTART, restart),
)
