"""Master keys in the files of a directory.

A file has 32 random bytes in base64, and its name is the id of the key. The last one in the order
of names wraps new keys. Hidden files don't count: Kubernetes keeps the versions of a secret in
some.
"""

from __future__ import annotations

import binascii
import os
from base64 import b64decode
from pathlib import Path
from typing import Final

from velaray.journal.encryption.keys import KEY_BYTES, WrongKey

_NONCE_BYTES: Final = 12
_LABEL: Final = b"velaray process key 1 "


class UnusableKeyFile(ValueError):
    """A file holds no master key, or a directory has no file; the text says what to do."""


class DirectoryKeys:
    """The master keys in a directory; implements `KeyProvider`. The files are read at each call, so
    a new one is in use without a restart."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def place(self) -> str:
        """The directory."""
        return str(self._directory)

    def check(self) -> None:
        """Raise `UnusableKeyFile` if a file has no key or there is none, `OSError` if one can't be
        read."""
        for name in self._names():
            self._key(name)
        self.newest_id()

    def newest_id(self) -> str:
        """The last name in order; see `KeyProvider`. Raises `UnusableKeyFile` if there is none."""
        names = self._names()
        if not names:
            raise UnusableKeyFile(
                f"{self._directory} has no file with a key: make one with `openssl rand -base64 "
                f"{KEY_BYTES} > {self._directory / '001'}`"
            )
        return names[-1]

    def wrap(self, key: bytes) -> tuple[str, bytes]:
        """Encrypt a key; see `KeyProvider`. Raises `UnusableKeyFile`, `OSError`."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # a large library

        key_id = self.newest_id()
        nonce = os.urandom(_NONCE_BYTES)
        sealed = AESGCM(self._key(key_id)).encrypt(nonce, key, _LABEL + key_id.encode())
        return key_id, nonce + sealed

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        """Decrypt a key; see `KeyProvider`. Raises `UnusableKeyFile` too."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if key_id not in self._names():
            raise LookupError(key_id)
        cipher = AESGCM(self._key(key_id))
        nonce, sealed = wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:]
        try:
            return cipher.decrypt(nonce, sealed, _LABEL + key_id.encode())
        except (InvalidTag, ValueError) as error:
            raise WrongKey(f"{self._directory / key_id} is another key of this id") from error

    def _names(self) -> list[str]:
        found = sorted(os.scandir(self._directory), key=lambda each: each.name)
        return [each.name for each in found if each.is_file() and not each.name.startswith(".")]

    def _key(self, name: str) -> bytes:
        path = self._directory / name
        try:
            key = b64decode(path.read_bytes().strip(), validate=True)
        except binascii.Error:
            key = b""
        if len(key) != KEY_BYTES:
            raise UnusableKeyFile(
                f"{path} holds no key, which is {KEY_BYTES} bytes in base64: make one with "
                f"`openssl rand -base64 {KEY_BYTES} > {path}`"
            )
        return key
