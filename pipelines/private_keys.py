"""The private key with which Spark's and Ray Data's sources read encrypted messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from velaray.client.encryption_keys import CryptoKeyReader
from velaray.client.exceptions import CryptoError

if TYPE_CHECKING:
    from velaray.client.blocks import Segment


def key_reader(private_key_file: str | None) -> CryptoKeyReader | None:
    """A reader of the key in the file; None without a file. The file is read when it is needed."""
    return None if private_key_file is None else CryptoKeyReader("", private_key_file)


def check_decrypted(segments: Sequence[Segment]) -> None:
    """Raise `CryptoError` if a message couldn't be decrypted."""
    for segment in segments:
        info = segment.block.info
        if info.sealed:
            raise CryptoError(
                f"{info.topic}: entry {info.ledger_id}:{info.entry_id} can't be decrypted:"
                f" {info.sealed}; private_key_file names the RSA key (PEM) that decrypts it"
            )
