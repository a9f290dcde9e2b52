"""The master keys of encryption at rest, as the setting names them."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Final, cast

from velaray.journal.encryption.key_files import DirectoryKeys, UnusableKeyFile
from velaray.journal.encryption.keys import KeyProvider, LedgerKeys
from velaray.topology.key_files import KeyFileError

VARIABLE: Final = "VELARAY_ENCRYPTION_KEYS"
"""The environment variable of the setting, which tools read too."""
_CLASS: Final = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)", re.ASCII)


def named_keys(given: str | Path) -> str:
    """The value of the setting with an absolute path, which means the same in every process."""
    text = str(given)
    return text if not text or _CLASS.fullmatch(text) else str(Path(text).absolute())


def key_provider(named: str) -> KeyProvider:
    """The provider of a directory, or of a class ``module:Class`` that is made without arguments.

    Raises `KeyFileError` if there is no such class.
    """
    found = _CLASS.fullmatch(named)
    if found is None:
        return DirectoryKeys(Path(named))
    try:
        return cast(KeyProvider, getattr(import_module(found[1]), found[2])())
    except (ImportError, AttributeError) as error:
        raise KeyFileError(f"encryption keys {named}: there is no such class: {error}") from error


def ledger_keys(named: str, required: bool = False) -> LedgerKeys | None:
    """What makes and finds the keys of ledgers; None for "". ``required``: ledgers
    without a key are refused. Raises `KeyFileError`."""
    return LedgerKeys(key_provider(named), required=required) if named else None


def check_encryption_keys(named: str) -> None:
    """Raise `KeyFileError` if a directory has no usable keys, or there is no such class."""
    provider = key_provider(named)
    if isinstance(provider, DirectoryKeys):
        try:
            provider.check()
        except (UnusableKeyFile, OSError) as error:
            raise KeyFileError(f"encryption keys: {error}") from error
