"""Administration over the REST interface: tenants, namespaces, topics, subscriptions and more.

    admin = Admin("http://127.0.0.1:8080")
    admin.topics.create("flights", partitions=4)
    admin.subscriptions.seek("flights", "counting", MessageId.earliest)

Calls are synchronous, and each uses a short connection of its own. So an `Admin` may be shared
between threads.
"""

from __future__ import annotations

from velaray.client.admin.admin import Admin
from velaray.client.admin.connection import DEFAULT_URL, MAX_REDIRECTS
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
from velaray.client.admin.subscriptions import PeekedEntry

__all__ = [
    "DEFAULT_URL",
    "MAX_REDIRECTS",
    "Admin",
    "AdminError",
    "Conflict",
    "Invalid",
    "NotAllowed",
    "NotFound",
    "PeekedEntry",
    "PreconditionFailed",
    "Unauthorized",
    "Unavailable",
]
