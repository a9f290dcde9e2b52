"""What the demos that kill processes share: their store, finding victims, killing them, waiting."""

from __future__ import annotations

import argparse
import logging
import os
import random
import secrets
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import velaray
from velaray.client.admin import Unavailable
from velaray.cluster import Cluster

GONE_S = 5.0
STARTED_S = 60.0


def add_store_option(parser: argparse.ArgumentParser) -> None:
    """Let users of a demo choose where its journals are."""
    parser.add_argument(
        "--store",
        metavar="URL",
        help="keep the journals in this object store, such as s3://bucket/prefix, in a new prefix "
        "that the demo prints and doesn't delete",
    )


def place_in(store: str | None, folder: Path) -> str:
    """Where a demo keeps its journals: a new prefix in its store, or else a folder of its own."""
    if store is None:
        return str(folder / "data")
    return f"{store.rstrip('/')}/demo-{secrets.token_hex(4)}"


def create_topic(admin: velaray.Admin, topic: str, partitions: int) -> None:
    """Create a partitioned topic. The cluster has just started: on a busy machine it may refuse
    for a while, since an actor that it needs is still starting."""
    deadline = time.monotonic() + STARTED_S
    pause = threading.Event()
    while True:
        try:
            admin.create_topic(topic, partitions=partitions)
            return
        except Unavailable:
            if time.monotonic() > deadline:
                raise
        pause.wait(0.5)


def isolate(admin: velaray.Admin, topic: str) -> None:
    """Give partitions of a topic hosts of their own, as many as there are: killing such a host ends
    one partition and its subscriptions, and killing a shared one ends many actors."""
    admin.policies.set_on(topic, "isolation", "dedicated")


def quiet_clients() -> None:
    """Print only this demo's own lines: clients warn when they have to wait, as kills make them."""
    logging.getLogger("velaray").setLevel(logging.ERROR)


def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.1)
    return True


def exists(pid: int) -> bool:
    """Whether there is a process with this id that hasn't ended, noticed by its parent or not."""
    try:
        os.kill(pid, 0)
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


def sigkill(pid: int) -> bool:
    """Kill a process; False if it was gone already, or isn't gone soon after."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return wait_for(lambda: not exists(pid), GONE_S)


@dataclass(frozen=True, slots=True)
class Victim:
    """Something that runs, such as an actor of a cluster, and its process."""

    name: str
    pid: int
    host: str = ""
    """The host that runs an actor; "": the process is its own."""
    actors: int = 1
    """The number of actors that this process runs."""

    def __str__(self) -> str:
        if not self.host:
            return f"{self.name} (process {self.pid})"
        return f"{self.name} in {self.host} (actors: {self.actors}, process {self.pid})"


def victims(cluster: Cluster) -> list[Victim]:
    """The actors of a cluster that answer now."""
    found = []
    hosts = {}
    for each in cluster.actors():
        if "actors" in each:
            hosts[each["pid"]] = each
        else:
            host = hosts.get(each["pid"], {"key": "", "actors": [each["key"]]})
            found.append(Victim(each["key"], each["pid"], host["key"], len(host["actors"])))
    return found


def actor_of(
    kind: str,
    cluster: Cluster,
    chance: random.Random,
    fits: Callable[[str], bool] = lambda name: True,
) -> Victim | None:
    """An actor of a kind, of those whose name ``fits``; None if none answers now."""
    found = [each for each in victims(cluster) if each.name.startswith(kind) and fits(each.name)]
    return chance.choice(found) if found else None
