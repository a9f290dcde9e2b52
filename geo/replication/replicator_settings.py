"""Settings of a replicator, and the error for what it can't do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from velaray.events.portable import PortableError


class CannotReplicate(PortableError):
    """The other cluster lacks or refuses something; the text says what to do. The replicator
    tries again."""


@dataclass(frozen=True, slots=True)
class Remote:
    """The other cluster, and the settings of this topic for it.

    ``progress`` says how subscriptions' progress goes there: "exact", "snapshots" or "" (not at
    all), that of ``all_subscriptions`` or of those that ask for it. Entries older than ``ttl_ms``
    (0: none) stay where they are. ``rate`` is messages and bytes a second, 0 or less without limit.
    What came there from the clusters ``others`` isn't pulled from this one: it comes from those.
    With ``everything`` it is to have all messages and all progress, wherever messages came from and
    whomever they are for: the tenant moves there.
    """

    name: str
    service_url: str
    admin_url: str = ""
    token: str | None = field(default=None, repr=False)
    progress: str = ""
    all_subscriptions: bool = False
    ttl_ms: int = 0
    rate: tuple[float, float] = (0.0, 0.0)
    others: tuple[str, ...] = ()
    everything: bool = False

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Remote:
        """Parse the result of `told`."""
        return cls(**{**told, "rate": tuple(told["rate"]), "others": tuple(told["others"])})

    def told(self) -> dict[str, Any]:
        """The form for an RPC connection."""
        return {
            "name": self.name,
            "service_url": self.service_url,
            "admin_url": self.admin_url,
            "token": self.token,
            "progress": self.progress,
            "all_subscriptions": self.all_subscriptions,
            "ttl_ms": self.ttl_ms,
            "rate": list(self.rate),
            "others": list(self.others),
            "everything": self.everything,
        }
