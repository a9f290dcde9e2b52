"""A check whether Ray answers at an address and accepts this environment; run as a script.

It is a process of its own because Ray reads its settings once per process, tries to connect for 20
seconds after a refusal, and writes to the terminal meanwhile. The script imports nothing of
velaray.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import sys
from enum import StrEnum

CONNECT_S = 5.0
"""The time in which an address must accept a connection."""


class Outcome(StrEnum):
    """The outcome of a probe."""

    WELCOME = "welcome"
    """Ray answers."""
    REFUSED = "refused"
    """Ray requires a token, and this environment has none, or another one."""
    UNREACHABLE = "unreachable"
    """No Ray answers at the address."""
    NO_TLS = "no TLS"
    """Ray requires TLS, and this environment has no certificate for it."""
    NONE = "none"
    """No address was given, and there is no Ray on this machine."""


def probe(address: str) -> tuple[Outcome, str]:
    """The outcome, and the address of Ray or the reason why it can't be reached."""
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
    if "RAY_USE_TLS" not in os.environ and _speaks_tls(host.strip("[]"), int(port)):
        return Outcome.NO_TLS, where
    try:
        GcsClient(address=where)
    except AuthenticationError:
        return Outcome.REFUSED, where
    except (RayError, RuntimeError) as error:
        return Outcome.UNREACHABLE, str(error)
    return Outcome.WELCOME, where


def _speaks_tls(host: str, port: int) -> bool:
    """Whether a server answers the beginning of TLS. Its certificate doesn't matter."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((host, port), timeout=CONNECT_S) as connection:
            context.wrap_socket(connection).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1])))
