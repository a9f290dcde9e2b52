"""What Ray reports of its processes stays off the terminal of a Ray that velaray starts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import ray._private.worker

from tests.ray.support import GENEROUS_S, kill
from velaray.client.admin import Admin
from velaray.cluster import Cluster
from velaray.topology.ray_logs import node_logs


def test_lines_about_killed_processes_are_not_printed(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shown = ray._private.worker.print_to_stdstream
    reported = threading.Event()

    def show(data: dict[str, Any], **options: Any) -> None:
        shown(data, **options)
        reported.set()

    monkeypatch.setattr(ray._private.worker, "print_to_stdstream", show)
    with Cluster.start(data_dir, service_port=0, admin_port=0) as cluster:
        Admin(cluster.admin_url).create_topic("t")
        Admin(cluster.admin_url).stats("t")
        kill(cluster, "partition", "t")
        assert reported.wait(GENEROUS_S), "Ray reports the death of a worker"
        out, err = capfd.readouterr()
        for host in Admin(cluster.admin_url).hosts():
            title = Path(f"/proc/{host['pid']}/cmdline").read_text().rstrip("\0 ")
            assert title.startswith(f"ray::velaray-standalone:{host['name']}")
        processes = {process for process, _ in node_logs("auto", "standalone").read()}
    assert out == ""
    assert all(line.startswith("velaray: still ") for line in err.splitlines()), err
    assert {"front-door", "host/0", "placement"} <= processes
    assert ray._private.worker._worker_logs_enabled  # others' Rays in this process go on reporting
