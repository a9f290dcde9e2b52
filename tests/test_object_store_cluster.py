"""Clusters whose journals are in a real object store; see docs/object-stores.md."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

import velaray
from tests.support.on_s3 import on_s3
from tests.support.waiting import wait_until
from velaray.cli.app import main
from velaray.local import LocalCluster
from velaray.topology.ownership import Superseded

TOPIC = "persistent://public/default/t"
KILLED = """
import os, signal, sys
import velaray
cluster = velaray.LocalCluster.start(sys.argv[1])
client = velaray.Client(cluster.service_url)
consumer = client.subscribe(sys.argv[2], "s")
producer = client.create_producer(sys.argv[2])
for number in range(30):
    producer.send(b"%d" % number)
for _ in range(10):
    consumer.acknowledge(consumer.receive(30_000), receipt=True)
with client.transaction() as transaction:
    producer.send(b"committed", txn=transaction)
os.kill(os.getpid(), signal.SIGKILL)
"""

pytestmark = on_s3


def test_another_machine_goes_on_after_the_loss_of_a_process(s3_url: str) -> None:
    command = [sys.executable, "-c", KILLED, s3_url, TOPIC]
    ended = subprocess.run(command, check=False, timeout=240, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    with (
        LocalCluster.start(s3_url) as cluster,
        velaray.Client(cluster.service_url) as client,
        client.subscribe(TOPIC, "s") as consumer,
    ):
        found = [consumer.receive(60_000).data() for _ in range(21)]
        assert found == [b"%d" % number for number in range(10, 30)] + [b"committed"]
    verified = CliRunner().invoke(main, ["journal", "verify", "--data", s3_url])
    assert verified.exit_code == 0, verified.output
    listed = CliRunner().invoke(main, ["journal", "list", "--data", s3_url])
    assert "partition/public/default/t/" in listed.output


def test_a_second_cluster_on_the_same_store_ends_the_first(s3_url: str) -> None:
    with LocalCluster.start(s3_url) as first, velaray.Client(first.service_url) as client:
        producer = client.create_producer(TOPIC)
        producer.send(b"one")
        with (
            LocalCluster.start(s3_url) as second,
            velaray.Client(second.service_url) as other,
            other.create_reader(TOPIC, velaray.MessageId.earliest) as reader,
        ):
            assert reader.read_next(60_000).data() == b"one"
            wait_until(lambda: superseded(first))


def superseded(cluster: LocalCluster) -> bool:
    try:
        cluster.check_ownership()
    except Superseded:
        return True
    return False


def test_a_store_without_a_bucket_is_refused(s3_url: str) -> None:
    missing = s3_url.replace("s3://", "s3://no-such-bucket-")
    with pytest.raises(velaray.ClusterError, match="no-such-bucket"):
        LocalCluster.start(missing)
