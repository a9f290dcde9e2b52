"""Two clusters on one prefix of an object store: the later one serves, the earlier one stops."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pulsar

from tests.ray.support import Publisher, Receiver, quiet_client, wait_until
from tests.support.on_s3 import on_s3

pytestmark = on_s3
COMMAND = "from velaray.cli.app import main; main()"


@contextmanager
def started(store: str, errors: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A cluster in a process of its own, and its service URL; what it says is in ``errors``."""
    options = ["--store", store, "--service-port", "0", "--admin-port", "0"]
    with errors.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "start", "--local", *options],
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            env=os.environ,
        )
    with process:
        try:
            assert process.stdout is not None
            name, _, url = process.stdout.readline().partition(" ")
            assert name == "service", errors.read_text()
            yield process, url.strip()
        finally:
            process.terminate()


def test_the_earlier_one_stops_and_nothing_acknowledged_is_lost(
    s3_url: str, tmp_path: Path
) -> None:
    with started(s3_url, tmp_path / "first") as (first, first_url):
        publisher = Publisher(first_url, "numbers", send_timeout_ms=10_000)
        publisher.start()
        wait_until(lambda: len(publisher.acknowledged) >= 20, "receipts of the first cluster")
        with started(s3_url, tmp_path / "second") as (second, second_url):
            wait_until(lambda: first.poll() is not None, "the end of the first cluster")
            assert first.returncode not in (0, None)
            assert "was replaced by start 2" in (tmp_path / "first").read_text()
            publisher.join()
            assert publisher.error is not None, "no receipt comes from a cluster that has stopped"
            acknowledged = publisher.acknowledged
            client = quiet_client(second_url)
            earliest = pulsar.InitialPosition.Earliest
            receiver = Receiver(client.subscribe("numbers", "reader", initial_position=earliest))
            client.create_producer("numbers").send(b"-1")
            receiver.receive_until(lambda: -1 in receiver.first_seen.values())
            assert second.poll() is None
            read = list(receiver.first_seen.values())
            assert read[: len(acknowledged)] == acknowledged, "each once, in order"
            client.close()
