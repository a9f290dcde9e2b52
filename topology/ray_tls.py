"""TLS of Ray's own connections, by the certificates in one directory.

Ray reads the names of the files from the environment of each of its processes and drivers, and
checks the certificates of both ends. Without certificates of an authority in the directory, one is
made there, which signs for this machine.
"""

from __future__ import annotations

import os
import socket
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import ray
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from ray._raylet import Config  # type: ignore[attr-defined]

from velaray.client.tls import TlsFilesError, load_authorities, load_pair
from velaray.journal.private import make_private, private_opener
from velaray.topology.ray_connection import RayUnavailable

CERT, KEY, CA, CA_KEY = "tls.crt", "tls.key", "ca.crt", "ca.key"
"""The names of files, as in the secrets of Kubernetes."""
_VARIABLES: Final = {
    "RAY_TLS_SERVER_CERT": CERT,
    "RAY_TLS_SERVER_KEY": KEY,
    "RAY_TLS_CA_CERT": CA,
}
_AUTHORITY_DAYS = 3650
_DAYS = 365


def use_ray_tls(folder: Path) -> None:
    """Make this process, and Ray if it starts it, connect to Ray by TLS alone.

    A directory without an authority gets one. If the key of the authority is there, a new
    certificate for this machine is made. Raises `RayUnavailable` if the files can't be used.
    """
    folder = folder.absolute()
    try:
        if not (folder / CA).exists():
            make_private(folder)
            _make_authority(folder)
        if (folder / CA_KEY).exists():
            _issue(folder)
        _check(folder)
    except (OSError, ValueError) as error:
        raise RayUnavailable(f"Ray's TLS can't be set up with {folder}: {error}") from error
    os.environ["RAY_USE_TLS"] = "1"
    os.environ.update({name: str(folder / file) for name, file in _VARIABLES.items()})
    Config.initialize("")  # Ray has read the environment when it was imported


def _check(folder: Path) -> None:
    missing = [name for name in (CERT, KEY, CA) if not (folder / name).is_file()]
    if missing:
        raise TlsFilesError(f"it lacks {' and '.join(missing)}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_pair(context, str(folder / CERT), str(folder / KEY))
    load_authorities(context, str(folder / CA))


def _make_authority(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Ray of velaray")])
    made = (
        _builder(name, name, key.public_key(), _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(folder / CA_KEY, _private(key))
    _write(folder / CA, made.public_bytes(Encoding.PEM))


def _issue(folder: Path) -> None:
    """Sign a certificate for the addresses of this machine, for servers and clients alike."""
    authority = x509.load_pem_x509_certificate((folder / CA).read_bytes())
    signing = load_pem_private_key((folder / CA_KEY).read_bytes(), None)
    if not isinstance(signing, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{CA_KEY} is no key that velaray has made")
    key = ec.generate_private_key(ec.SECP256R1())
    own = {"localhost", "127.0.0.1", socket.gethostname(), ray.util.get_node_ip_address()}
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a node of Ray")])
    made = (
        _builder(name, authority.subject, key.public_key(), _DAYS)
        .add_extension(x509.SubjectAlternativeName(list(map(_host, sorted(own)))), critical=False)
        .sign(signing, hashes.SHA256())
    )
    _write(folder / KEY, _private(key))
    _write(folder / CERT, made.public_bytes(Encoding.PEM))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
    )


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, content: bytes) -> None:
    """Replace a file as a whole, readable by its owner alone."""
    new = path.with_name(f"{path.name}.new")
    with open(new, "wb", opener=private_opener) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
