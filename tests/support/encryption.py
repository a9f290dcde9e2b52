"""Pairs of keys for tests of end-to-end encryption."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa


def written_keys(
    folder: Path, name: str, key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | None = None
) -> tuple[str, str]:
    """Write a pair of keys, by default of RSA; returns the paths of its public and private key.

    Pulsar's Java client reads private keys in the form of PKCS #1 only.
    """
    key = key or rsa.generate_private_key(65537, 2048)
    public, private = folder / f"{name}-public.pem", folder / f"{name}-private.pem"
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return str(public), str(private)
