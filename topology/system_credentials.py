"""The authentication of an actor as a client of its own cluster."""

from __future__ import annotations

from velaray.client.auth import Authentication
from velaray.client.tls import Security, TlsOptions
from velaray.topology.auth import SYSTEM_METHOD, own_proof
from velaray.topology.tls import actor_tls


class SystemCredentials(Authentication):
    """Credentials of a client that is one of the cluster's actors."""

    def __init__(self, rpc_key: bytes, method: str = SYSTEM_METHOD) -> None:
        """``method``: `HANDLES_METHOD` has the rights of a superuser, not those of an actor."""
        self.method = method
        self._rpc_key = rpc_key
        self._proof = own_proof(rpc_key, method).encode()

    def data(self) -> bytes:
        """The proof."""
        return self._proof

    def secured(self, tls: TlsOptions) -> Security:
        """As actors connect to each other, with any ``tls``."""
        return actor_tls(self._rpc_key)
