"""End-to-end encryption between velaray's client and Pulsar's clients for Java and Go."""

from __future__ import annotations

from pathlib import Path

import pytest

import velaray
from tests.official import go_client, java_client
from tests.official.support import PATIENCE_MS, LocalServer, numbered
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


def test_go_reads_what_velaray_encrypts(
    go: str, local: LocalServer, topic: str, tmp_path: Path
) -> None:
    paths = written_keys(tmp_path, "app")
    reader = velaray.CryptoKeyReader(*paths)
    payloads = numbered(30)
    with velaray.Client(local.service_url) as client:
        for batching in (True, False):
            with client.create_producer(
                topic,
                encryption_keys=["app", "also"],
                crypto_key_reader=reader,
                batching_enabled=batching,
                compression_type=velaray.CompressionType.ZSTD,
            ) as producer:
                for payload in payloads:
                    producer.send_async(payload, lambda *_: None)
                producer.flush()
                producer.send_many(payloads)
    words = (local.service_url, topic, *paths, "120")
    with go_client.running(go, "decrypt", *words) as consumer:
        got = [consumer.line() for _ in range(120)]
    assert got == [payload.decode() for payload in payloads] * 4


def test_velaray_reads_what_go_encrypts(
    go: str, local: LocalServer, topic: str, tmp_path: Path
) -> None:
    paths = written_keys(tmp_path, "app")
    go_client.run(go, "encrypt", local.service_url, topic, *paths, "40")
    expected = [b"%d" % number for number in range(40)]
    with velaray.Client(local.service_url) as client:
        for name, key_reader in (("s", velaray.CryptoKeyReader(*paths)), ("wrong", None)):
            consumer = client.subscribe(
                topic,
                name,
                initial_position=velaray.InitialPosition.Earliest,
                crypto_key_reader=key_reader,
                crypto_failure_action=velaray.ConsumerCryptoFailureAction.CONSUME,
            )
            message = consumer.receive(PATIENCE_MS)
            context = message.encryption_context()
            assert context is not None
            (key,) = context.keys()
            assert key.key == "app"
            assert context.is_decryption_failed() == (key_reader is None)
            if key_reader is not None:
                others = [consumer.receive(PATIENCE_MS).data() for _ in expected[1:]]
                assert [message.data(), *others] == expected


def test_go_without_the_private_key_delivers_what_is_encrypted(
    go: str, local: LocalServer, topic: str, tmp_path: Path
) -> None:
    public, private = written_keys(tmp_path, "app")
    with (
        velaray.Client(local.service_url) as client,
        client.create_producer(
            topic, encryption_key="app", crypto_key_reader=velaray.CryptoKeyReader(public, private)
        ) as producer,
    ):
        for payload in numbered(3):
            producer.send(payload)
    with go_client.running(go, "decrypt", local.service_url, topic, public, "", "3") as consumer:
        assert [consumer.line() for _ in range(3)] == ["encrypted"] * 3
