"""Routes of the admin interface for the hosts that actors share."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from aiohttp import web

from velaray.admin.http import (
    PREFIX,
    AdminError,
    Route,
    actor_system_of,
    answer,
    done,
    object_body,
)
from velaray.events.ids import ActorKey, InvalidNameError, TopicName
from velaray.topology.host_control import HostControl
from velaray.topology.placement import group_of


def _control(request: web.Request) -> HostControl:
    control = actor_system_of(request).host_control
    if control is None:
        raise AdminError(
            412, "the actors of this cluster share no hosts: start it with --placement shared"
        )
    return control


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise AdminError(400, f"{name} must be a text that isn't empty, not {value!r}")
    return value


def group_named(name: str) -> str:
    """The group of a topic, or of the actor with this key. Raises `InvalidNameError`."""
    if "://" not in name:
        try:
            return group_of(ActorKey.parse(name))
        except InvalidNameError:
            pass  # the short name of a topic
    return str(TopicName.parse(name))


async def list_hosts(request: web.Request) -> web.Response:
    """The hosts that run, with their actors."""
    return answer([asdict(status) for status in await _control(request).hosts()])


async def move(request: web.Request) -> web.Response:
    """Move the actors of a topic, or another actor, to a host (default: the emptiest one)."""
    control, body = _control(request), await object_body(request)
    to = _text(body, "host") if "host" in body else ""
    return answer({"host": await control.move(group_named(_text(body, "name")), to)})


async def drain(request: web.Request) -> web.Response:
    """Move everything out of a host, and place nothing more in it."""
    control, body = _control(request), await object_body(request)
    return answer({"moved": await control.drain(_text(body, "host"))})


async def resume(request: web.Request) -> web.Response:
    """Place actors in a drained host again."""
    control, body = _control(request), await object_body(request)
    await control.resume(_text(body, "host"))
    return done()


async def restart(request: web.Request) -> web.Response:
    """Restart the process of a drained host with the installed version."""
    control, body = _control(request), await object_body(request)
    return answer(asdict(await control.restart(_text(body, "host"))))


_HOSTS = f"{PREFIX}/velaray/hosts"
ROUTES: tuple[Route, ...] = (
    ("GET", _HOSTS, list_hosts),
    ("POST", f"{_HOSTS}/move", move),
    ("POST", f"{_HOSTS}/drain", drain),
    ("POST", f"{_HOSTS}/resume", resume),
    ("POST", f"{_HOSTS}/restart", restart),
)
