"""The keys of end-to-end encryption: where they are read, and what a received message says of them.

``cryptography`` isn't loaded here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from velaray.client.enums import CompressionType
from velaray.wire.pulsar_pb2 import MessageMetadata


@dataclass(frozen=True)
class EncryptionKeyInfo:
    """A key in PEM form. ``metadata`` of a public key is stored with each message."""

    key: bytes = field(repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class EncryptionKeyReader(Protocol):
    """Finds the RSA keys of producers and consumers.

    The methods are called on the client's event loop and must return quickly; a data key that was
    encrypted or decrypted is kept. Any exception means that there is no such key.
    """

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """The public key of this name, for a producer. ``metadata`` is empty."""
        ...

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """The private key of this name, for a consumer. ``metadata`` is that of the message."""
        ...


class CryptoKeyReader:
    """Reads one public and one private key (PEM) from files, whatever the key's name is.

    The files are read when a key is needed, so a replaced file takes effect with the next data key.
    """

    def __init__(self, public_key_path: str, private_key_path: str) -> None:
        """Producers read only the first file, consumers and readers only the second one."""
        self._public_key_path = str(public_key_path)
        self._private_key_path = str(private_key_path)

    def get_public_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """The key in the first file. Raises `OSError`."""
        return EncryptionKeyInfo(Path(self._public_key_path).read_bytes())

    def get_private_key(self, key_name: str, metadata: Mapping[str, str]) -> EncryptionKeyInfo:
        """The key in the second file. Raises `OSError`."""
        return EncryptionKeyInfo(Path(self._private_key_path).read_bytes())


class EncryptionKey(NamedTuple):
    """A data key in a message, encrypted with the public key of the name ``key``."""

    key: str
    value: bytes
    metadata: dict[str, str]


class EncryptionContext:
    """How the entry of a message was encrypted and compressed.

    An application can decrypt the payload with it if the client couldn't.
    """

    def __init__(self, metadata: MessageMetadata, failed: bool) -> None:
        self._metadata = metadata
        self._failed = failed

    def keys(self) -> list[EncryptionKey]:
        """The data key, encrypted for each of the producer's keys."""
        return [
            EncryptionKey(each.key, each.value, {pair.key: pair.value for pair in each.metadata})
            for each in self._metadata.encryption_keys
        ]

    def param(self) -> bytes:
        """The initialization vector of the entry."""
        return self._metadata.encryption_param

    def algorithm(self) -> str:
        """The name that the producer gave to its algorithm; Pulsar's clients give none."""
        return self._metadata.encryption_algo

    def compression_type(self) -> CompressionType:
        """How the entry was compressed before it was encrypted."""
        return CompressionType(int(self._metadata.compression))

    def uncompressed_message_size(self) -> int:
        """Bytes before the compression; 0 without compression."""
        return self._metadata.uncompressed_size

    def batch_size(self) -> int:
        """Number of messages of the entry's batch; -1 if the entry is no batch."""
        if not self._metadata.HasField("num_messages_in_batch"):
            return -1
        return self._metadata.num_messages_in_batch

    def is_decryption_failed(self) -> bool:
        """Whether the message's payload is the whole entry, still encrypted."""
        return self._failed

    def __repr__(self) -> str:
        names = [each.key for each in self._metadata.encryption_keys]
        return f"<EncryptionContext of {names}, is_decryption_failed={self._failed}>"
