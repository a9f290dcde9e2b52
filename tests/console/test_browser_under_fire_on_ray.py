"""Every action of the console in Chromium, while hosts on real Ray are killed by SIGKILL.

A process of Ray takes seconds to come back. The actions on hosts are pressed too.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray.exceptions import RayError

from tests.console.browsing import IN_CHROMIUM
from tests.console.test_browser_under_fire import (
    ACTIONS,
    ELSEWHERE,
    FIRE,
    HOSTS,
    Action,
    Fire,
    arrange,
    every_route,
    press_all,
)
from tests.console.window import Window
from tests.ray.support import RayNodes
from tests.support.waiting import wait_until
from velaray import Client
from velaray.client.admin import Admin
from velaray.cluster import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.long, IN_CHROMIUM]

LIMIT_S = 120


def killer_on_ray(cluster: Cluster) -> Callable[[int], None]:
    """A function that kills the process of a host, and returns once there is another one."""
    hosts = [
        ray.get_actor(f"host/{number}", cluster.config.ray_namespace) for number in range(HOSTS)
    ]

    def pid_of(number: int) -> int:
        try:
            return int(ray.get(hosts[number].describe.remote(), timeout=LIMIT_S)["pid"])
        except RayError:
            return 0  # it isn't back

    def kill(number: int) -> None:
        former = wait_until(lambda: pid_of(number), LIMIT_S)
        os.kill(former, signal.SIGKILL)
        wait_until(lambda: pid_of(number) not in (0, former), LIMIT_S)

    return kill


def change_host(action: str, told: str) -> Callable[[Window, str], None]:
    """Drain the first host, restart it, or resume it."""

    def press(window: Window, fresh: str) -> None:
        window.open("/console/hosts")
        window.press("/console/hosts/change", host="host/0", action=action)
        window.done(told)

    return press


def move_topic(window: Window, fresh: str) -> None:
    window.open("/console/hosts")
    window.press("/console/hosts/move", topic=FIRE)
    window.done("is in host/")


HOST_ACTIONS = {
    "move a topic": Action(move_topic),
    "drain a host": Action(change_host("drain", "is drained")),
    "restart a host": Action(change_host("restart", "has a new process")),
    "resume a host": Action(change_host("resume", "takes actors again")),
}


@pytest.mark.timeout(1800)
def test_actions_under_fire_on_ray(browser: Any) -> None:
    options: dict[str, Any] = {"service_port": 0, "admin_port": 0, "undelete_s": 3600}
    with (
        tempfile.TemporaryDirectory(prefix="vr-") as data,
        RayNodes(workers=0),
        Cluster.start(data, placement="shared", hosts=HOSTS, **options) as cluster,
        Client(cluster.service_url) as client,
    ):
        admin = Admin(cluster.admin_url)
        arrange(admin, client)  # hosts start with the first actors
        fire = Fire(killer_on_ray(cluster), 2.0)
        window = Window(browser, admin.url, "narrow", "dark")
        press_all(window, admin, fire, ACTIONS | HOST_ACTIONS)
        assert every_route() - window.asked == ELSEWHERE
