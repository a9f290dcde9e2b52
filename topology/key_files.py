"""Key files: keys are given as files, so that they appear in no command line and no log."""

from __future__ import annotations

from pathlib import Path

# The strength of HS256 is that of its key; a short key can be guessed from a single token.
LEAST_SECRET_BYTES = 32
LEAST_RSA_BITS = 2048


class KeyFileError(ValueError):
    """The file holds no usable key; the text states the reason and the remedy."""


def read_secret(path: Path) -> bytes:
    """The key in ``path``: all of its bytes, as in Pulsar's key files.

    Raises `KeyFileError` if it has fewer than 32 bytes, `OSError` if it can't be read.
    """
    secret = path.read_bytes()
    if len(secret) < LEAST_SECRET_BYTES:
        raise KeyFileError(
            f"{path} holds {len(secret)} bytes; a key needs at least {LEAST_SECRET_BYTES}: make "
            f"one with `openssl rand -out {path} {LEAST_SECRET_BYTES}`"
        )
    return secret


def read_public_key(path: Path) -> str:
    """The PEM text in ``path``.

    Raises `KeyFileError` if it is no RSA public key, `OSError` if it can't be read.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        check_public_key(text)
    except ValueError as error:
        raise KeyFileError(f"{path} holds no RSA public key in PEM form: {error}") from error
    return text


def check_public_key(text: str) -> None:
    """Raise `ValueError` unless ``text`` is an RSA public key, in PEM form, of 2048 bits or more.

    A private key is refused too: it doesn't belong on a server that only verifies tokens.
    """
    from cryptography.exceptions import UnsupportedAlgorithm  # large libraries
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError("it can't be read as one") from error
    if not isinstance(key, RSAPublicKey):
        raise ValueError("it is a key for another algorithm than RS256")
    if key.key_size < LEAST_RSA_BITS:
        raise ValueError(f"it has {key.key_size} bits, fewer than {LEAST_RSA_BITS}")
