"""Which operations of the admin interface change something.

A request with another method than GET is a change, unless its operation is listed in `READS`. So a
new operation is recorded in the audit log, and is refused to viewers, without a row.
"""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from velaray.admin.brokers import QUOTA_CHECK
from velaray.client.admin.operations import Operation
from velaray.client.admin.topics import MAY_CREATE, PARTITIONS

_TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_SCHEMAS = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"

READS = frozenset(
    {
        f"PUT {_TOPIC}/backlogSize",
        f"POST {_TOPIC}/subscription/{{subscription}}/analyzeBacklog",
        f"POST {_SCHEMAS}/version",
        f"POST {_SCHEMAS}/compatibility",
    }
)
"""Operations with a body that change nothing."""
CHANGING_GETS: Mapping[str, str] = {
    f"GET {QUOTA_CHECK.path}": "",
    f"GET {PARTITIONS.path}": MAY_CREATE.name,
}
"""Operations of Pulsar that change something although their method is GET; and the query parameter
with which they do ("": always)."""


def name_of(operation: Operation) -> str:
    """The name of an operation in tables and records: method and path."""
    return f"{operation.method} {operation.path}"


def may_change(operation: Operation) -> bool:
    """Whether some request for this operation changes something."""
    name = name_of(operation)
    return name in CHANGING_GETS or (operation.method != "GET" and name not in READS)


def is_change(operation: Operation, request: web.Request) -> bool:
    """Whether this request, if it succeeds, changes something."""
    if not may_change(operation):
        return False
    flag = CHANGING_GETS.get(name_of(operation), "")
    return not flag or request.query.get(flag, "false").lower() != "false"
