"""A cluster that speaks nothing but TLS and wants a certificate or a token, and what its clients
need, for tests of pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jwt

from tests.support.certificates import Authority, Pair
from tests.support.encryption import written_keys
from tests.support.local_cluster import LocalCluster
from velaray.client.tls import TlsOptions
from velaray.topology.config import AuthSettings
from velaray.topology.tls_settings import ClientAuth, TlsSettings

_SECRET = b"a secret that is long enough for HS256"
KEY = "orders"
"""The name of the key of end-to-end encryption."""


@dataclass(frozen=True)
class Secured:
    """A running cluster, and the files of its clients."""

    url: str
    authority: Path
    alice: Pair
    token_file: Path
    public_key: str
    private_key: str

    @property
    def token(self) -> str:
        """The token in `token_file`."""
        return self.token_file.read_text().strip()

    @property
    def trusting(self) -> TlsOptions:
        """Trusts the cluster's authority."""
        return TlsOptions(str(self.authority))

    @property
    def certified(self) -> TlsOptions:
        """Presents a certificate as well."""
        files = str(self.alice.cert), str(self.alice.key)
        return TlsOptions(str(self.authority), False, True, *files)

    @property
    def spark_trusting(self) -> dict[str, str]:
        """`trusting` as Spark's options, with the file of the token."""
        return {
            "service_url": self.url,
            "tls_trust_certs_file_path": str(self.authority),
            "token_file": str(self.token_file),
        }

    @property
    def spark_certified(self) -> dict[str, str]:
        """`certified` as Spark's options."""
        return {
            "service_url": self.url,
            "tls_trust_certs_file_path": str(self.authority),
            "tls_certificate_file_path": str(self.alice.cert),
            "tls_private_key_file_path": str(self.alice.key),
        }


@contextmanager
def secured(folder: Path, *hosts: str) -> Iterator[Secured]:
    """Run a cluster whose certificate is for ``hosts``, by default for this machine."""
    authority = Authority(folder / "authority")
    server, alice = authority.issue("server", *hosts), authority.issue("alice", "alice.example")
    token_file = folder / "token"
    token_file.write_text(jwt.encode({"sub": "bob"}, _SECRET, algorithm="HS256") + "\n")
    files = str(server.cert), str(server.key), str(authority.file)
    auth = AuthSettings(secret=_SECRET)
    optional = ClientAuth.OPTIONAL
    tls = TlsSettings(*files, service_port=0, admin_port=0, client_auth=optional, only=True)
    with LocalCluster(folder / "data", auth=auth, tls=tls, hosts=1) as cluster:
        keys = written_keys(folder, KEY)
        yield Secured(cluster.tls_service_url, authority.file, alice, token_file, *keys)
        assert cluster.actor_system.failures == []
