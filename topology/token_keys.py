"""The keys that verify tokens. Those in files follow the files without a restart."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from velaray.client.tls import Stamp, stamps
from velaray.topology.config import AuthSettings
from velaray.topology.key_files import KeyFileError, read_public_key, read_secret

logger = logging.getLogger("velaray")

Key = str | bytes
_SECRETS, _PUBLIC = "HS256", "RS256"
_READERS: Mapping[str, Callable[[Path], Key]] = {_SECRETS: read_secret, _PUBLIC: read_public_key}


class TokenKeys:
    """The keys of one file, or of the files in one directory.

    The files are looked at for each token. A file that can't be used any more is logged, and its
    former key stays in use.
    """

    def __init__(self, path: str, algorithm: str) -> None:
        """Raises `KeyFileError` if a file has no usable key or a directory has no file, `OSError`
        if one can't be read."""
        self._path = Path(path)
        self._read_key = _READERS[algorithm]
        self._seen = self._stamps()
        self._keys = {file.name: self._read_key(file) for file in self._files()}
        if not self._keys:
            raise KeyFileError(f"{path} has no file with a key")

    def current(self) -> Sequence[Key]:
        """The keys, at least one."""
        seen = self._stamps()
        if seen != self._seen:
            self._seen = seen
            self._refresh()
        return list(self._keys.values())

    def _refresh(self) -> None:
        found: dict[str, Key] = {}
        for file in self._files():
            try:
                found[file.name] = self._read_key(file)
            except (KeyFileError, OSError) as error:
                logger.error("keys of tokens: %s isn't in use: %s", file, error)
                if file.name in self._keys:
                    found[file.name] = self._keys[file.name]
        if not found:
            logger.error("keys of tokens: %s has none; the former ones stay in use", self._path)
            return
        self._keys = found
        logger.info("keys of tokens: in use are %s", ", ".join(found))

    def _files(self) -> list[Path]:
        """Hidden files don't count: Kubernetes keeps the versions of a secret in some."""
        if not self._path.is_dir():
            return [self._path]
        try:
            found = sorted(self._path.iterdir())
        except OSError:
            return []
        return [each for each in found if each.is_file() and not each.name.startswith(".")]

    def _stamps(self) -> Sequence[tuple[str, Stamp]]:
        paths = [str(each) for each in self._files()]
        return list(zip(paths, stamps(paths), strict=True))


@lru_cache(maxsize=16)
def token_keys(path: str, algorithm: str) -> TokenKeys:
    """The keys at a path, which a process reads once. Raises what `TokenKeys` raises."""
    return TokenKeys(path, algorithm)


def check_token_keys(settings: AuthSettings) -> None:
    """Raise `KeyFileError` or `OSError` if the files of these settings have no usable keys."""
    for path, algorithm in _paths(settings):
        TokenKeys(path, algorithm)


def _paths(settings: AuthSettings) -> list[tuple[str, str]]:
    named = (settings.secret_path, _SECRETS), (settings.public_key_path, _PUBLIC)
    return [each for each in named if each[0]]


def _verifying(settings: AuthSettings) -> tuple[Sequence[Key], str]:
    """The keys and their algorithm; no keys: tokens have another issuer."""
    if settings.secret is not None:
        return [settings.secret], _SECRETS
    if settings.public_key is not None:
        return [settings.public_key], _PUBLIC
    for path, algorithm in _paths(settings):
        return token_keys(path, algorithm).current(), algorithm
    return [], _SECRETS


def verified_claims(settings: AuthSettings, token: str) -> dict[str, Any]:
    """The claims of a token that one of the keys has signed; key ids in tokens mean nothing.

    Raises `jwt.InvalidTokenError`, `KeyFileError` or `OSError`.
    """
    import jwt  # loads a large library: imported only where tokens are in use

    keys, algorithm = _verifying(settings)
    failure = jwt.InvalidTokenError("another issuer")
    for key in keys:
        try:
            found: dict[str, Any] = jwt.decode(
                token, key, algorithms=[algorithm], options={"require": ["sub"]}
            )
        except jwt.InvalidSignatureError as error:
            failure = error
            continue
        return found
    raise failure
