"""Whether Ray answers at an address, and lets this environment in; run as a script.

A process of its own: Ray reads its settings once a process, tries for 20 seconds to reach what
refuses it, and writes to the terminal meanwhile. The script imports nothing of velaray.
"""

from __future__ import annotations

import json
import socket
import sys
from enum import StrEnum

CONNECT_S = 5.0
"""How long an address may take to accept a connection."""


class Outcome(StrEnum):
    """What a probe finds out."""

    WELCOME = "welcome"
    """Ray answers."""
    REFUSED = "refused"
    """Ray asks for a token, and this environment has none, or another one."""
    UNREACHABLE = "unreachable"
    """No Ray answers at the address."""
    NONE = "none"
    """No address was given, and there is no Ray on this machine."""


def probe(address: str) -> tuple[Outcome, str]:
    """The outcome, and where Ray was looked for or why it can't be reached."""
    from ray._private.services import canonicalize_bootstrap_address
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.exceptions import AuthenticationError, RayError

    try:
        where = canonicalize_bootstrap_address(address)
    except ConnectionError:
        where = None
    except ValueError as error:
        return Outcome.UNREACHABLE, str(error)
    if where is None:
        return Outcome.NONE, address
    host, _, port = where.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, ValueError) as error:
        return Outcome.UNREACHABLE, str(error)
    try:
        GcsClient(address=where)
    except AuthenticationError:
        return Outcome.REFUSED, where
    except (RayError, RuntimeError) as error:
        return Outcome.UNREACHABLE, str(error)
    return Outcome.WELCOME, where


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1])))
