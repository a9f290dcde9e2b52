"""End-to-end encryption between velaray's client and Pulsar's Java client."""

from __future__ import annotations

from pathlib import Path

import pytest

import velaray
from tests.official import java_client
from tests.official.support import PATIENCE_MS, LocalServer
from tests.support.encryption import written_keys

pytestmark = pytest.mark.slow


def test_java_reads_and_answers_encrypted(
    java: str, local: LocalServer, topic: str, tmp_path: Path
) -> None:
    paths = written_keys(tmp_path, "app")
    reader = velaray.CryptoKeyReader(*paths)
    payloads = [bytes([number]) * 1000 * number for number in range(4)]
    with velaray.Client(local.service_url) as client:
        answers = client.subscribe(f"{topic}-answers", "s", crypto_key_reader=reader)
        for batching in (True, False):
            producer = client.create_producer(
                topic,
                encryption_key="app",
                crypto_key_reader=reader,
                batching_enabled=batching,
                compression_type=velaray.CompressionType.ZSTD,
            )
            for payload in payloads:
                producer.send_async(payload, lambda *_: None)
            producer.flush()
        words = (topic, f"{topic}-answers", *paths, str(2 * len(payloads)))
        java_client.run(java, "Encryption", local.service_url, *words)
        got = [answers.receive(PATIENCE_MS) for _ in range(2 * len(payloads))]
    assert [message.data() for message in got] == payloads * 2
    assert all(message.encryption_context() is not None for message in got)
