"""The public keys with which Spark's and Ray Data's sinks encrypt messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from velaray.client.encryption_keys import EncryptionKeyInfo
from velaray.client.exceptions import InvalidConfiguration

OPTIONS = frozenset({"encryption_key", "public_key_file"})
"""The options that name the keys and their files."""


@dataclass(frozen=True)
class PublicKeys:
    """A key reader for producers: the file (PEM) of each key, by name.

    A file is read when its key is needed, so only workers need it.
    """

    files: tuple[tuple[str, str], ...]

    @staticmethod
    def of(names: Sequence[str], files: Sequence[str]) -> PublicKeys | None:
        """The keys of these names, in files in the same order; None without names and files.

        Raises `InvalidConfiguration` unless each name has a file and is given once.
        """
        if len(names) != len(files) or len(set(names)) != len(names) or not all([*names, *files]):
            raise InvalidConfiguration(
                f"encryption_key has the names {list(names)} and public_key_file the files"
                f" {list(files)}: give one file for each name, in the same order"
            )
        return PublicKeys(tuple(zip(names, files, strict=True))) if names else None

    @property
    def names(self) -> list[str]:
        """The names: the owner of each key can decrypt the messages."""
        return [name for name, _ in self.files]

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """The key in the file of this name. Raises `KeyError` and `OSError`."""
        return EncryptionKeyInfo(Path(dict(self.files)[key_name]).read_bytes())

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """Raises `KeyError`: sinks read nothing."""
        raise KeyError(key_name)


def listed(text: str | None) -> list[str]:
    """The entries of an option that holds several, with commas."""
    return [] if text is None else [entry.strip() for entry in text.split(",")]
