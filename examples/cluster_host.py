"""One cluster on a Ray of its own, for demos that need several on one machine.

Started as a process with the cluster's name, its number, the place of its journals (a directory or
the URL of an object store) and the file of the replication secret. On standard output it first
tells where the cluster answers, then answers each line of standard input; both are JSON. It stops
the cluster when it's told to, or when standard input closes.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from under_fire import actor_of, sigkill

from velaray.cluster import Cluster


class Host:
    """A running cluster, and what can be asked of it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._chance = random.Random()

    def kill(self, prefix: str, part: str, without: str) -> dict[str, Any]:
        """SIGKILL a living actor whose name begins like that, has this part in it (if any) and
        not that one; says which it was, and nothing if there was none."""

        def fits(name: str) -> bool:
            return part in name and not (without and without in name)

        found = actor_of(prefix, self._cluster, self._chance, fits)
        if found is None or not sigkill(found.pid):
            return {}
        return {"killed": str(found)}


def serve(name: str, number: int, place: str, secret: Path) -> None:
    """Run a cluster until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    with Cluster.start(
        place,
        name=name,
        cluster_number=number,
        replication_secret=secret.read_bytes(),
        service_port=0,
        admin_port=0,
    ) as cluster:
        host = Host(cluster)
        where = {"service_url": cluster.service_url, "admin_url": cluster.admin_url}
        print(json.dumps(where), file=answers)
        for line in sys.stdin:
            print(json.dumps(host.kill(**json.loads(line))), file=answers)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
