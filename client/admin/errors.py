"""The errors of administration."""

from __future__ import annotations

import json
from collections.abc import Mapping

from velaray.client.exceptions import VelarayError


class AdminError(VelarayError):
    """A request failed. ``status`` is the HTTP status; 0 means that there was no answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NotFound(AdminError):
    """The resource doesn't exist."""


class Conflict(AdminError):
    """The resource exists already, or it isn't empty."""


class NotAllowed(AdminError):
    """The resource doesn't allow the operation, such as a topic that belongs to the system."""


class PreconditionFailed(AdminError):
    """Clients are connected, or a limit or rule forbids the operation."""


class Invalid(AdminError):
    """A name, number or policy isn't valid."""


class Unauthorized(AdminError):
    """The token is missing or not accepted."""


class Unavailable(AdminError):
    """There was no answer, or a part of the cluster can't be reached now: try again. Whether a
    change took effect is unknown."""


_ERRORS: Mapping[int, type[AdminError]] = {
    400: Invalid,
    401: Unauthorized,
    404: NotFound,
    405: NotAllowed,
    406: PreconditionFailed,
    409: Conflict,
    412: PreconditionFailed,
    413: Invalid,
    422: Invalid,
    503: Unavailable,
}


def error_of(status: int, content: bytes) -> AdminError:
    """Return the error that an answer stands for."""
    try:
        reason = json.loads(content)["reason"]
    except (ValueError, KeyError, TypeError):
        reason = content[:200].decode("utf-8", "replace") or f"HTTP status {status}"
    return _ERRORS.get(status, AdminError)(status, reason)
