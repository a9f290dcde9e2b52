"""Clusters that know each other, each in a process of its own with a Ray of its own."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import velaray

STOP_S = 90.0


class HostedCluster:
    """A cluster that `cluster_host.py` runs; made by `hosted`."""

    def __init__(self, name: str, number: int, place: str, log: Path, secret: Path) -> None:
        """Begin to start it; `wait` returns when it runs. ``place``: of its journals."""
        self.name = name
        self._log = log
        script = Path(__file__).with_name("cluster_host.py")
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(script), name, str(number), place, str(secret)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # Ctrl-C is for who runs the demo; this one is told
            )
        self._lock = threading.Lock()
        self.service_url = self.admin_url = ""

    def wait(self) -> None:
        """Return when the cluster serves. Raises `SystemExit` if it can't be started."""
        where = self._answer()
        self.service_url, self.admin_url = where["service_url"], where["admin_url"]

    @property
    def admin(self) -> velaray.Admin:
        """Its admin interface."""
        return velaray.Admin(self.admin_url)

    def kill(self, prefix: str, part: str = "", without: str = "") -> str | None:
        """SIGKILL the process of a living actor whose name begins with ``prefix``, has ``part`` in
        it and not ``without``; says which, None if there is none just now."""
        with self._lock:
            assert self._process.stdin is not None
            asked = {"prefix": prefix, "part": part, "without": without}
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            found = self._answer()
        return found.get("killed")

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            end = "\n".join(self._log.read_text().splitlines()[-20:])
            raise SystemExit(f"cluster {self.name} is gone; the end of its log:\n{end}")
        return dict(json.loads(line))

    def stop(self) -> None:
        """Stop the cluster and its Ray; kills what doesn't stop in time."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def hosted(
    folder: Path, place: str, names: Sequence[str], progress: str = "exact"
) -> Iterator[list[HostedCluster]]:
    """Clusters of these names, numbered from 1, with their journals below ``place``, a directory or
    the URL of an object store, and their logs in ``folder``; each is registered in the others, with
    this ``progress``, and all have the same replication secret."""
    secret = folder / "replication.secret"
    secret.touch(mode=0o600)
    secret.write_bytes(secrets.token_bytes(32))
    with ExitStack() as stack:
        found = [
            HostedCluster(name, at, f"{place}/{name}", folder / f"{name}.log", secret)
            for at, name in enumerate(names, 1)
        ]
        for each in found:
            stack.callback(each.stop)
        for each in found:
            each.wait()
        for here, there in permutations(found, 2):
            here.admin.create_cluster(
                there.name,
                service_url=there.service_url,
                admin_url=there.admin_url,
                progress=progress,
            )
        yield found


class Kill(NamedTuple):
    """A kind of process to kill, and in which of the clusters."""

    kind: str
    cluster: HostedCluster

    def shoot(self, tenant: str) -> str | None:
        """Kill one of them, and say which; None if there is none just now."""
        prefix, part, without = _VICTIMS[self.kind]
        return self.cluster.kill(prefix.format(tenant=tenant), part, without)


_REPLICATOR = "/pulsar.repl."
_VICTIMS = {
    "replicator": ("subscription/{tenant}/", _REPLICATOR, ""),
    "subscription": ("subscription/{tenant}/", "", _REPLICATOR),
    "partition": ("partition/{tenant}/", "", ""),
    "catalog": ("catalog", "", ""),
}
"""Of each kind: how the names of its actors begin, what is in them, and what isn't."""
