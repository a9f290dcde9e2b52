"""Key files: keys are given as files, so that they appear in no command line and no log."""

from __future__ import annotations

from pathlib import Path

# The strength of HS256 is that of its key; a short key can be guessed from a single token.
LEAST_SECRET_BYTES = 32


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

    Raises `KeyFileError` if it is no public key, `OSError` if it can't be read.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    if "PUBLIC KEY" not in text:
        raise KeyFileError(f"{path} holds no public key in PEM form")
    return text
