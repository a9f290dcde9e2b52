"""Settings of a replicator, and the error for what it can't replicate."""

from __future__ import annotations

from dataclasses import dataclass, field

from velaray.client.tls import TlsOptions
from velaray.events.portable import PortableError


class CannotReplicate(PortableError):
    """The other cluster lacks or refuses something; the text says what to do. The replicator
    tries again."""


@dataclass(frozen=True, slots=True)
class Remote:
    """The other cluster, and the settings of this topic for it.

    ``progress`` is the way in which subscription progress is sent: "exact", "snapshots" or "" (not
    at all); it is sent for ``all_subscriptions``, or only for those with the property. Entries
    older than ``ttl_ms`` (0: no limit) aren't replicated. ``rate`` is messages and bytes a second;
    0 or less: no limit. Entries that the other cluster got from the clusters ``others`` aren't
    pulled from it: those clusters send them. ``everything`` is set while the tenant migrates there:
    then all messages and all progress are sent, whatever their origin and destinations. ``tls`` is
    how to connect to a URL of TLS.
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
    tls: TlsOptions = field(default_factory=TlsOptions)
