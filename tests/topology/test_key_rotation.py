"""The rotation of the keys of tokens in docs/security.md, on a running cluster."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import jwt
import pytest

import velaray
from tests.support.samples import samples
from velaray.client.admin import Admin
from velaray.client.admin.errors import Unauthorized
from velaray.local import LocalCluster
from velaray.topology.config import AuthSettings

VELARAY = f"velaray() {{ {sys.executable} -c 'from velaray.cli.app import main; main()' $@; }}"
HERE = "tests/topology/test_key_rotation.py"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")
def test_keys_of_tokens_are_replaced_while_clients_stay(tmp_path: Path) -> None:
    (sample,) = (each for each in samples("docs/security.md") if each.test == HERE)
    steps = sample.code.splitlines()
    start = next(number for number, line in enumerate(steps) if line.startswith("#"))
    last = next(number for number, line in enumerate(steps) if line.startswith("rm"))

    def run(begin: int, end: int) -> None:
        script = "\n".join((VELARAY, *steps[begin:end]))
        subprocess.run(["bash", "-euc", script], cwd=tmp_path, check=True, timeout=60)

    run(0, start)
    auth = AuthSettings(secret_path=str(tmp_path / "keys"))
    with LocalCluster.start(auth=auth, superusers=["app"]) as cluster:
        key = (tmp_path / "keys" / "2026-11").read_bytes()
        old = jwt.encode({"sub": "app"}, key, algorithm="HS256")
        client = velaray.Client(cluster.service_url, velaray.AuthenticationToken(old))
        producer = client.create_producer("t")
        producer.send(b"with the old key")
        run(start, last)
        new = (tmp_path / "app.token").read_text().strip()
        for each in (old, new):
            assert Admin(cluster.admin_url, token=each).topics("public/default")
        run(last, len(steps))
        producer.send(b"on the connection that was open")
        assert Admin(cluster.admin_url, token=new).topics("public/default")
        with pytest.raises(Unauthorized):
            Admin(cluster.admin_url, token=old).topics("public/default")
        with velaray.Client(cluster.service_url, velaray.AuthenticationToken(new)) as other:
            consumer = other.subscribe("t", "s", initial_position=velaray.InitialPosition.Earliest)
            assert consumer.receive(30_000).data() == b"with the old key"
        client.close()
