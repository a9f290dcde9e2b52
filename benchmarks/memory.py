"""How much bigger velaray's idle actor processes are than a bare Ray actor's."""

from __future__ import annotations

import ray

from benchmarks.model import Result, Samples, Verdict
from benchmarks.options import Options
from benchmarks.processes import private_bytes
from benchmarks.ray_actors import bare_actor, retire
from benchmarks.rig import running_cluster, touch_topic
from benchmarks.systems.official_client import connected
from velaray.cluster import Cluster

BARE = "bare Ray actor"
KINDS = ("partition", "subscription", "catalog")
LIMIT_MIB = 20.0
CASE = "idle"
MEASURE = "private memory"


def run(options: Options) -> Result:
    """New topics and new bare actors in every round; the catalog is the same process."""
    samples = Samples()
    with (
        running_cluster(placement="dedicated") as cluster,
        connected(cluster.service_url) as client,
    ):
        for number in range(options.rounds):
            topic = f"memory-{number}"
            touch_topic(client, topic, "s")
            bare = bare_actor(f"memory-{number}")
            samples.add(CASE, BARE, MEASURE, "MiB", private_bytes(bare.pid()) / (1 << 20))
            retire(bare)
            for kind in KINDS:
                found = private_bytes(_pid(cluster, kind, topic)) / (1 << 20)
                samples.add(CASE, kind, MEASURE, "MiB", found)
    result = Result(
        name="memory",
        settings={
            "what": "Private_Clean + Private_Dirty of /proc/PID/smaps_rollup",
            "bare Ray actor": "one async method, the same Ray options as velaray's actors",
            "idle": "one message was published and acknowledged, then the client left",
            "ray": ray.__version__,
        },
        baseline=BARE,
        rows=samples.rows(),
    )
    size = {row.subject: row.median for row in result.rows}
    result.verdicts = [
        Verdict(f"{kind}: MiB above a bare Ray actor", size[kind] - size[BARE], LIMIT_MIB)
        for kind in KINDS
    ]
    return result


def _pid(cluster: Cluster, kind: str, topic: str) -> int:
    for actor in cluster.actors():
        found, *rest = actor["key"].split("/")
        if found == kind and (kind == "catalog" or topic in rest):
            return int(actor["pid"])
    raise LookupError(f"no {kind} actor of {topic} runs")
