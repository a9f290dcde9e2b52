"""The settings of TLS, which every actor of a cluster receives. They name files and hold no key."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

ACTORS_NAME = "actors.velaray.internal"
"""The name in the certificate of a cluster's actors. A client that asks for this name is one."""


class ClientAuth(StrEnum):
    """Whether clients present a certificate of their own."""

    NONE = "none"
    """They aren't asked for one."""
    OPTIONAL = "optional"
    """One that is presented must be valid."""
    REQUIRED = "required"
    """A client without a valid one is refused."""


class TlsVersion(StrEnum):
    """The oldest accepted version of TLS."""

    TLS_1_2 = "1.2"
    TLS_1_3 = "1.3"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The settings of TLS. Files are paths, which are the same on all nodes.

    ``cert`` and ``key`` are the certificate of the servers, with those of its intermediate
    authorities, and its key. ``ca`` has the authorities of clients' certificates ("": none).
    ``service_port`` and ``admin_port`` are the TLS ports of proxies. ``only``: they have no others.
    """

    cert: str
    key: str
    ca: str = ""
    client_auth: ClientAuth = ClientAuth.NONE
    min_version: TlsVersion = TlsVersion.TLS_1_2
    service_port: int = 6651
    admin_port: int = 8443
    only: bool = False

    def files(self) -> list[str]:
        """The paths."""
        return [path for path in (self.cert, self.key, self.ca) if path]
