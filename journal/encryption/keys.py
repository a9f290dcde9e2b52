"""The keys of encrypted ledgers.

A *master key* of a `KeyProvider` wraps *process keys*, which are random. The key of a ledger is
derived from a process key, 32 random bytes and what the ledger's header says. The header has the id
of the master key, the wrapped process key and the random bytes. So a provider is asked once for
each process that wrote ledgers, and not once for each ledger.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final, NamedTuple, Protocol

from velaray.journal.errors import JournalError, MissingKey

logger = logging.getLogger("velaray")

KEY_BYTES: Final = 32
SEED_BYTES: Final = 32
KNOWN_PROCESS_KEYS: Final = 1024
"""Process keys that stay in memory after they were unwrapped."""
MOST_WRAPPED: Final = 4096
"""The most bytes of a wrapped key and its id together: the header of a ledger has both."""
_LABEL: Final = b"velaray ledger 1"


class WrongKey(ValueError):
    """A master key doesn't fit a wrapped key: it isn't the one that wrapped it."""


class KeyProvider(Protocol):
    """Master keys, such as those of a key management service. Calls may block; they run on other
    threads than the event loop's, one at a time.

    The methods may raise `OSError` if the provider doesn't answer, and `ValueError` if what it has
    can't be used.
    """

    @property
    def place(self) -> str:
        """Where the master keys are, for people."""
        ...

    def newest_id(self) -> str:
        """The id of the master key that `wrap` uses now. It is asked for each new ledger, so it
        should cost little."""
        ...

    def wrap(self, key: bytes) -> tuple[str, bytes]:
        """Encrypt ``key`` with the newest master key; returns the id of that one and the encrypted
        key. Both together have at most 4,096 bytes."""
        ...

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        """The inverse of `wrap`.

        Raises `LookupError` if the provider has no master key of this id, `WrongKey` if that key
        didn't wrap it.
        """
        ...


@dataclass(frozen=True, slots=True)
class LedgerKey:
    """What the header of an encrypted ledger says about its key."""

    key_id: str
    wrapped: bytes
    seed: bytes


class _ProcessKey(NamedTuple):
    key_id: str
    wrapped: bytes
    key: bytes


class LedgerKeys:
    """Makes and finds the keys of ledgers with a provider's master keys. A store has one; it may
    be used from several event loops."""

    def __init__(
        self,
        provider: KeyProvider,
        random_bytes: Callable[[int], bytes] = os.urandom,
        *,
        required: bool = False,
    ) -> None:
        """``required`` says that ledgers without a key are refused."""
        self.provider = provider
        self.required = required
        self._random_bytes = random_bytes
        self._calls = Lock()  # held by a thread that calls the provider, never by a loop
        self._lock = Lock()  # of the known keys
        self._own: _ProcessKey | None = None
        self._known: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()

    async def make(self, file: str, context: bytes) -> tuple[LedgerKey, bytes]:
        """A new key for the ledger ``file``, with what its header says about it.

        ``context`` is the rest of the header; no other header gives the same key. A new master key
        is in use from the next call on. If the provider doesn't answer, the former process key
        stays in use. Raises `MissingKey` if there is none.
        """
        own = await asyncio.to_thread(self._current, file)
        seed = self._random_bytes(SEED_BYTES)
        return LedgerKey(own.key_id, own.wrapped, seed), _derived(own.key, seed, context)

    async def find(self, file: str, header: LedgerKey, context: bytes) -> bytes:
        """The key of an existing ledger. Raises `MissingKey`."""
        process_key = self._remembered(header)
        if process_key is None:
            process_key = await asyncio.to_thread(self._unwrapped, file, header)
        return _derived(process_key, header.seed, context)

    def _remembered(self, header: LedgerKey) -> bytes | None:
        with self._lock:
            found = self._known.get((header.key_id, header.wrapped))
            if found is not None:
                self._known.move_to_end((header.key_id, header.wrapped))
            return found

    def _remember(self, key_id: str, wrapped: bytes, key: bytes) -> None:
        with self._lock:
            self._known[key_id, wrapped] = key
            if len(self._known) > KNOWN_PROCESS_KEYS:
                self._known.popitem(last=False)

    def _current(self, file: str) -> _ProcessKey:
        """The process key for new ledgers. It blocks."""
        with self._calls:
            try:
                if self._own is None or self._own.key_id != self.provider.newest_id():
                    self._own = self._made()
            except (LookupError, ValueError, OSError) as error:
                if self._own is None:
                    raise self._missing(file, "", error) from error
                logger.error(
                    "encryption keys: %s: %s; key %s stays in use",
                    *(self.provider.place, error, self._own.key_id),
                )
            return self._own

    def _made(self) -> _ProcessKey:
        key = self._random_bytes(KEY_BYTES)
        key_id, wrapped = self.provider.wrap(key)
        if len(key_id.encode()) + len(wrapped) > MOST_WRAPPED:
            raise JournalError(
                f"{self.provider.place}: a wrapped key and its id have more than {MOST_WRAPPED} "
                "bytes, which no ledger's header has room for"
            )
        self._remember(key_id, wrapped, key)
        return _ProcessKey(key_id, wrapped, key)

    def _unwrapped(self, file: str, header: LedgerKey) -> bytes:
        """The process key of a ledger. It blocks."""
        with self._calls:
            found = self._remembered(header)
            if found is not None:
                return found
            try:
                found = self.provider.unwrap(header.key_id, header.wrapped)
            except (LookupError, ValueError, OSError) as error:
                raise self._missing(file, header.key_id, error) from error
            self._remember(header.key_id, header.wrapped, found)
            return found

    def _missing(self, file: str, key_id: str, error: Exception) -> MissingKey:
        if isinstance(error, LookupError):
            problem = "which has no key of this id" if key_id else "which has no key"
        else:
            problem = f"which can't be used: {error}"
        return MissingKey(file, key_id, self.provider.place, problem)


def _derived(process_key: bytes, seed: bytes, context: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256  # large libraries
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    kdf = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=seed, info=_LABEL + context)
    return kdf.derive(process_key)
