"""Administration over the REST interface: tenants, namespaces, topics, subscriptions and more.

    admin = Admin("http://127.0.0.1:8080")
    admin.topics.create("flights", partitions=4)
    admin.subscriptions.seek("flights", "counting", MessageId.earliest)

`Admin` blocks and may be shared between threads. `velaray.aio.Admin` has the same methods as
coroutines.
"""

from __future__ import annotations

from velaray.client.admin.admin import Admin, AsyncioAdmin
from velaray.client.admin.connection import DEFAULT_URL, MAX_REDIRECTS
from velaray.client.admin.entries import PeekedEntry
from velaray.client.admin.errors import (
    AdminError,
    Conflict,
    Invalid,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    Unauthorized,
    Unavailable,
)

__all__ = [
    "DEFAULT_URL",
    "MAX_REDIRECTS",
    "Admin",
    "AdminError",
    "AsyncioAdmin",
    "Conflict",
    "Invalid",
    "NotAllowed",
    "NotFound",
    "PeekedEntry",
    "PreconditionFailed",
    "Unauthorized",
    "Unavailable",
]
