"""A cluster on real Ray with keys: its processes read them in the directory."""

from __future__ import annotations

import os
from base64 import b64encode
from pathlib import Path

import velaray
from tests.ray.support import RayNodes
from velaray.cluster import Cluster

WORKERS = 0
MARKER = b"payload-marker"


def test_every_process_encrypts_and_decrypts(nodes: RayNodes, data_dir: Path) -> None:
    keys, data = data_dir / "keys", data_dir / "data"
    keys.mkdir()
    (keys / "001").write_bytes(b64encode(os.urandom(32)))
    for start in range(2):
        ports = {"service_port": 0, "admin_port": 0}
        with (
            Cluster.start(data, **ports, placement="shared", encryption_keys=keys) as cluster,
            velaray.Client(cluster.service_url) as client,
        ):
            consumer, producer = client.subscribe("t", "s"), client.create_producer("t")
            for _ in range(20):
                producer.send(MARKER)
            for _ in range(10 + 20 * start):
                message = consumer.receive(60_000)
                assert message.data() == MARKER
                consumer.acknowledge(message, receipt=True)
            (secrets,) = (data / "secrets").iterdir()
            assert cluster.config.rpc_key not in secrets.read_bytes()
    stored = [path.read_bytes() for path in data.rglob("*") if path.is_file()]
    assert len(stored) > 10 and not any(MARKER in raw for raw in stored)
