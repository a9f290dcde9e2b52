"""Actor processes load what their kind needs, and none of the edge's libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import ray
before = set(sys.modules)
import velaray.topology.ray_system
import velaray.broker.{body}
print(*sorted({{name.split(".")[0] for name in set(sys.modules) - before}}))
LAYERS = ("velaray.broker.", "velaray.admin.")
print(*sorted(name for name in sys.modules if name.startswith(LAYERS)))
"""


@pytest.mark.parametrize(
    "body",
    ["partition.partition_actor", "subscription.subscription_actor", "catalog.catalog_actor"],
)
def test_an_actor_process_stays_small(body: str) -> None:
    program = [sys.executable, "-c", PROGRAM.format(body=body)]
    answer = subprocess.run(program, check=True, capture_output=True, text=True)
    packages, modules = (set(line.split()) for line in answer.stdout.splitlines())
    assert "velaray" in packages
    assert not packages & {"aiohttp", "click", "cramjam", "jwt", "pydantic", "rich"}
    assert "velaray.admin.api" not in modules
    if not body.startswith("partition."):
        assert not any(
            module.startswith("velaray.broker.partition.partition") for module in modules
        )
