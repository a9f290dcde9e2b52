"""The examples of docs/schemas.md, one after the other, do what they say."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.local_cluster import LocalCluster

PAGE = Path(__file__).resolve().parents[1] / "docs" / "schemas.md"
DOCUMENTED_URL = "pulsar://127.0.0.1:6650"


def test_the_examples_run(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(examples) == 5
    # Dataclasses look for the module that they're defined in.
    names: dict[str, object] = {"__name__": __name__}
    with LocalCluster(tmp_path) as cluster:
        for example in examples:
            exec(example.replace(DOCUMENTED_URL, cluster.service_url), names)
