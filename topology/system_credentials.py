"""The authentication of an actor as a client of its own cluster."""

from __future__ import annotations

from velaray.client.auth import Authentication
from velaray.topology.auth import SYSTEM_METHOD, system_proof


class SystemCredentials(Authentication):
    """Credentials of a client that is one of the cluster's actors."""

    method = SYSTEM_METHOD

    def __init__(self, rpc_key: bytes) -> None:
        self._proof = system_proof(rpc_key).encode()

    def data(self) -> bytes:
        """The proof."""
        return self._proof
