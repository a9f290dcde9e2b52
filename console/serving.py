"""The application of the admin port: the REST interface, and the console in front of it.

Nothing large is loaded before the application is made: processes that only name it stay small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from velaray.topology.actor_system import ActorSystem

if TYPE_CHECKING:
    from aiohttp import web


def admin_port_app(actor_system: ActorSystem) -> web.Application:
    """The application for the cluster of ``actor_system``."""
    from velaray.console.app import console_app

    return console_app(actor_system)
