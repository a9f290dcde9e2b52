"""TLS between the actors of a cluster, by a certificate that follows from the cluster's RPC key.

Every process of the cluster makes the same key and the same certificate, and trusts no other. So
both ends know that they are actors of this cluster, whatever the names of their machines are. The
RPC key is new at each start, and so is the certificate.
"""

from __future__ import annotations

import hmac
import secrets
import ssl
from datetime import UTC, datetime
from tempfile import NamedTemporaryFile

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)

from velaray.topology.tls_settings import ACTORS_NAME

_PURPOSE = b"velaray: the certificate of actors"
_FIRST, _LAST = datetime(2020, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)


class ActorTls:
    """How actors connect to each other by TLS: a `velaray.client.tls.Security`."""

    def __init__(self, rpc_key: bytes) -> None:
        key = Ed25519PrivateKey.from_private_bytes(hmac.digest(rpc_key, _PURPOSE, "sha256"))
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, ACTORS_NAME)])
        certificate = (
            x509.CertificateBuilder()
            .issuer_name(name)
            .subject_name(name)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(_FIRST)
            .not_valid_after(_LAST)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(ACTORS_NAME)]), critical=False)
            .sign(key, None)
        )
        self._certificate = certificate.public_bytes(Encoding.PEM)
        self._password = secrets.token_bytes(32)
        self._key = key.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(self._password)
        )
        self.server = self._context(ssl.PROTOCOL_TLS_SERVER)
        """The context of listeners. Callers that aren't actors are refused."""
        self._client = self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0
        context.load_verify_locations(cadata=self._certificate.decode())
        with NamedTemporaryFile(prefix="velaray-") as file:  # OpenSSL reads files; it is encrypted
            file.write(self._key + self._certificate)
            file.flush()
            context.load_cert_chain(file.name, password=self._password)
        return context

    def context(self) -> ssl.SSLContext:
        """The context of a connection to an actor."""
        return self._client

    def server_name(self, host: str) -> str:
        """`ACTORS_NAME`, on any host."""
        return ACTORS_NAME
