"""End-to-end encryption as in Pulsar's clients: AES-256-GCM data keys, encrypted with RSA-OAEP."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, OAEP
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA1
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from velaray.client.encryption_keys import EncryptionKeyReader
from velaray.client.enums import ProducerCryptoFailureAction
from velaray.client.exceptions import CryptoError
from velaray.wire.pulsar_pb2 import EncryptionKeys, MessageMetadata

logger = logging.getLogger("velaray")

KEY_LIFE_S = 4 * 60 * 60
"""Seconds after which a producer makes a new data key, as in Pulsar's clients."""

RETRY_S = 60
"""Seconds until the next attempt to replace a data key whose replacement failed."""

LARGEST_CACHE = 1000
"""Number of decrypted data keys that a consumer keeps for each topic partition."""

_IV_SIZE = 12
_TAG_SIZE = 16
_PARAM_ROOM = _IV_SIZE + 2


@contextmanager
def _asking(what: str) -> Iterator[None]:
    """Turn every exception of the body into `CryptoError`: a key reader is the user's code."""
    try:
        yield
    except Exception as error:
        raise CryptoError(f"{what}: {error!r}") from error


class _DataKey(NamedTuple):
    cipher: AESGCM
    encrypted: list[EncryptionKeys]
    overhead: int


class Encryptor:
    """Encrypts the entries of one producer on one topic partition.

    The first entry, and the first one after `KEY_LIFE_S`, gets a new data key. If that fails the
    former data key stays in use.
    """

    def __init__(
        self,
        names: Sequence[str],
        reader: EncryptionKeyReader,
        action: ProducerCryptoFailureAction,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Each of ``names`` is a public key whose owner can decrypt the messages."""
        self._names = tuple(dict.fromkeys(names))
        self._reader = reader
        self._action = action
        self._clock = clock
        self._current: _DataKey | None = None
        self._due = 0.0
        self._in_plain = False

    def overhead(self) -> int:
        """Upper bound of the bytes that encryption adds to an entry; 0 without a data key."""
        try:
            return self._data_key().overhead
        except CryptoError:
            return 0

    def encrypt(self, metadata: MessageMetadata, payload: bytes | memoryview) -> bytes | memoryview:
        """Return the encrypted payload, and describe it in ``metadata``.

        Without a key the payload returns as it is if the failure action is SEND. Raises
        `CryptoError`; ``metadata`` stays as it was.
        """
        data_key = self._data_key_or_none()
        if data_key is None:
            return payload
        iv = os.urandom(_IV_SIZE)
        metadata.ClearField("encryption_keys")
        metadata.encryption_keys.extend(data_key.encrypted)
        metadata.encryption_param = iv
        return data_key.cipher.encrypt(iv, payload, None)

    def _data_key_or_none(self) -> _DataKey | None:
        try:
            data_key = self._data_key()
        except CryptoError as error:
            if self._action is not ProducerCryptoFailureAction.SEND:
                raise
            if not self._in_plain:
                logger.warning("messages are sent without encryption: %s", error)
            self._in_plain = True
            return None
        self._in_plain = False
        return data_key

    def _data_key(self) -> _DataKey:
        current = self._current
        if current is not None and self._clock() < self._due:
            return current
        try:
            self._current = made = self._made()
        except CryptoError as error:
            if current is None:
                raise
            logger.warning("the data key can't be replaced and stays in use: %s", error)
            self._due = self._clock() + RETRY_S
            return current
        self._due = self._clock() + KEY_LIFE_S
        return made

    def _made(self) -> _DataKey:
        secret = AESGCM.generate_key(256)
        encrypted = [self._encrypted(name, secret) for name in self._names]
        described = MessageMetadata(encryption_keys=encrypted)
        overhead = len(described.SerializePartialToString()) + _PARAM_ROOM + _TAG_SIZE
        return _DataKey(AESGCM(secret), encrypted, overhead)

    def _encrypted(self, name: str, secret: bytes) -> EncryptionKeys:
        with _asking(f"the public key {name!r} can't be read"):
            info = self._reader.get_public_key(name, {})
            public = load_pem_public_key(info.key)
            encrypted = EncryptionKeys(key=name)
            for key, value in info.metadata.items():
                encrypted.metadata.add(key=key, value=value)
        if not isinstance(public, RSAPublicKey):
            raise CryptoError(f"the public key {name!r} is no RSA key")
        with _asking(f"the public key {name!r} can't encrypt a data key"):
            encrypted.value = public.encrypt(secret, _padding())
        return encrypted


class Decryptor:
    """Decrypts the entries of one topic partition, and keeps their data keys."""

    def __init__(self, reader: EncryptionKeyReader) -> None:
        self._reader = reader
        self._known: OrderedDict[bytes, AESGCM] = OrderedDict()

    def decrypt(self, metadata: MessageMetadata, payload: bytes | memoryview) -> bytes:
        """Return the decrypted payload. Raises `CryptoError` if no key fits."""
        reasons = []
        # Known data keys first, so that the reader is asked once for each data key.
        for each in sorted(metadata.encryption_keys, key=lambda key: key.value not in self._known):
            try:
                cipher = self._cipher_of(each)
                return cipher.decrypt(metadata.encryption_param, payload, None)
            except CryptoError as error:
                reasons.append(str(error))
            except (InvalidTag, ValueError):
                reasons.append(f"the data key for {each.key!r} doesn't fit the payload")
        raise CryptoError("; ".join(reasons))

    def _cipher_of(self, encrypted: EncryptionKeys) -> AESGCM:
        cipher = self._known.get(encrypted.value)
        if cipher is None:
            cipher = self._decrypted(encrypted)
            self._known[encrypted.value] = cipher
            if len(self._known) > LARGEST_CACHE:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(encrypted.value)
        return cipher

    def _decrypted(self, encrypted: EncryptionKeys) -> AESGCM:
        name = encrypted.key
        with _asking(f"the private key {name!r} can't be read"):
            metadata = {pair.key: pair.value for pair in encrypted.metadata}
            info = self._reader.get_private_key(name, metadata)
            private = load_pem_private_key(info.key, None)
        if not isinstance(private, RSAPrivateKey):
            raise CryptoError(f"the private key {name!r} is no RSA key")
        with _asking(f"the private key {name!r} can't decrypt the data key"):
            return AESGCM(private.decrypt(encrypted.value, _padding()))


def _padding() -> OAEP:
    """The padding of Pulsar's clients: OAEP with SHA-1, which is safe in this use."""
    return OAEP(MGF1(SHA1()), SHA1(), None)
