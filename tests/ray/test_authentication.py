"""Ray's token: a Ray that velaray starts asks for it, and another Ray without it isn't trusted."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster as RayCluster
from ray.exceptions import RayTaskError

import velaray
from tests.ray.support import OBJECT_STORE
from velaray.client.admin import Admin
from velaray.cluster import PROXY, Cluster
from velaray.events.ids import ActorKey
from velaray.starting import ClusterError
from velaray.topology.config import AuthSettings
from velaray.topology.ray_connection import ensure_token

SECRET = b"the secret that signs every token"

DRIVER = """
import sys, ray
from velaray.topology.ray_connection import connect_ray
connect_ray(sys.argv[1])
import velaray
with velaray.connect() as client:
    print(client.get_topic_partitions("t"))
"""


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty home, and an environment that says nothing about Ray's authentication."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    yield tmp_path
    monkeypatch.undo()
    ensure_token()  # Ray keeps a process's settings until it gets others


@contextmanager
def running(auth: AuthSettings | None = None, placement: str = "auto") -> Iterator[Cluster]:
    with (
        tempfile.TemporaryDirectory(prefix="vr-") as folder,
        Cluster.start(
            folder, service_port=0, admin_port=0, auth=auth, placement=placement
        ) as cluster,
    ):
        yield cluster


def drive(address: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Another driver, in a process of its own, with these settings of Ray's authentication."""
    inherited = {name: value for name, value in os.environ.items() if "RAY_AUTH" not in name}
    return subprocess.run(
        [sys.executable, "-c", DRIVER, address],
        env=inherited | settings,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_only_drivers_with_the_token_can_connect_to_a_ray_started_by_velaray(home: Path) -> None:
    with running() as cluster:
        kept = home / ".ray" / "auth_token"
        assert kept.stat().st_mode & 0o777 == 0o600
        Admin(cluster.admin_url).create_topic("t")
        address = ray.get_runtime_context().gcs_address
        found = drive(address)  # of the same user: it needs no settings
        assert found.stdout == "['persistent://public/default/t']\n", found.stderr
        no_home = {"HOME": str(home / "other")}
        refused: list[dict[str, str]] = [
            no_home,
            {**no_home, "RAY_AUTH_MODE": "disabled"},
            {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "another one"},
        ]
        for settings in refused:
            done = drive(address, **settings)
            told = done.stderr.splitlines()[-1]
            assert done.returncode == 1, done.stdout
            assert "RAY_AUTH_MODE=token" in told and "RAY_AUTH_TOKEN_PATH" in told


def is_in_memory(process: str, texts: list[bytes]) -> list[bool]:
    """Whether a process of the Ray that this process has started has these texts in memory."""
    pid = ray._private.worker._global_node.all_processes[process][0].process.pid
    found = [False] * len(texts)
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            places, rights = line.split()[:2]
            if not rights.startswith("rw-p"):
                continue
            start, end = (int(each, 16) for each in places.split("-"))
            with suppress(OSError):  # a page that the kernel keeps for itself
                content = os.pread(memory.fileno(), end - start, start)
                found = [was or text in content for was, text in zip(found, texts, strict=True)]
    return found


def test_neither_ray_nor_a_call_of_an_actor_has_a_secret() -> None:
    with running(AuthSettings(secret=SECRET), "dedicated") as cluster:
        proxy = ray.get_actor(PROXY, cluster.config.ray_namespace)
        handle = velaray.handle("t")
        ray.get(handle.publish.remote(b"needs no token"))
        with pytest.raises(velaray.NotAllowedError, match="belongs to the system"):
            ray.get(velaray.handle("pulsar/system/t").publish.remote(b""))
        answers = ray.get(
            [proxy.describe.remote(), proxy.resolve.remote("t"), handle.stats.remote()]
        )
        for answer in answers:
            stored = pickle.dumps(answer)
            assert SECRET not in stored and cluster.config.rpc_key not in stored
        catalog = ray.get_actor(ActorKey.catalog().text(), cluster.config.ray_namespace)
        assert not hasattr(catalog, "call")
        with pytest.raises(RayTaskError) as refused:
            ray.get(catalog.call_if_started.remote("clusters"))
        assert "over Ray actors answer metrics, replication, stats, upkeep" in str(refused.value)
        # The control service keeps the arguments of every actor; the directory is one of them.
        texts = [cluster.config.data_dir.encode(), SECRET, cluster.config.rpc_key]
        assert is_in_memory("gcs_server", texts) == [True, False, False]
        assert is_in_memory("raylet", texts)[1:] == [False, False]


@pytest.fixture(scope="module")
def open_ray() -> Iterator[None]:
    """A Ray of others that asks for no token; this process is connected to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # of what is started; this process keeps its mode
        head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
        cluster = RayCluster(initialize_head=True, head_node_args=head)
    ray.init(address=cluster.address, log_to_driver=False)
    yield
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.usefixtures("open_ray")
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_velaray_with_tokens_refuses_a_ray_without_tokens(data_dir: Path, host: str) -> None:
    auth = AuthSettings(secret=SECRET)
    with pytest.raises(ClusterError, match="RAY_AUTH_MODE=token"):
        Cluster.start(
            data_dir, service_port=0, admin_port=0, host=host, auth=auth, advertise="127.0.0.1"
        )


@pytest.mark.usefixtures("open_ray")
def test_on_a_ray_without_tokens_a_local_cluster_warns(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cluster.start(data_dir, service_port=0, admin_port=0):
        lines = capsys.readouterr().err.splitlines()
    # A slow start prints lines of progress as well.
    (warning,) = [line for line in lines if "without a token" in line]
    assert "RAY_AUTH_MODE=token" in warning
