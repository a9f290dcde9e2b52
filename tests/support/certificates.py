"""Authorities and certificates, made in tests."""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

_DAY = timedelta(days=1)


class Pair(NamedTuple):
    """The files of a certificate and of its key."""

    cert: Path
    key: Path


class Authority:
    """An authority with a folder for what it signs."""

    def __init__(self, folder: Path, name: str = "authority of tests") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        made = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self._certificate = made
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "ca.pem"
        """Its own certificate."""
        self.file.write_bytes(made.public_bytes(Encoding.PEM))

    def issue(self, name: str = "localhost", *names: str, to: str = "", days: float = 30.0) -> Pair:
        """Sign a certificate with the common name ``name``, for the hosts ``names``; by default it
        is for localhost. ``to`` is the name of the files. Existing files are replaced at once."""
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = [_host(each) for each in names or ("localhost", "127.0.0.1")]
        made = (
            _builder(_name(name), self._name, key.public_key(), days)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        stem = to or name.replace("/", "-")
        pair = Pair(self._folder / f"{stem}.pem", self._folder / f"{stem}.key")
        form = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        replace_file(pair.key, key.private_bytes(*form))
        replace_file(pair.cert, made.public_bytes(Encoding.PEM))
        return pair


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file as tools for certificates do."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    os.replace(new, path)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float = 30.0
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + timedelta(days=days))
    )
