"""Small runs of the demos with their journals in an object store."""

from __future__ import annotations

import re

import pytest

from tests.ray.support import run_demo
from tests.support.s3_server import BUILD_WITHIN_S, S3Server

pytestmark = [pytest.mark.long, pytest.mark.timeout(BUILD_WITHIN_S)]

DEMOS = {
    "flights": ("--flights", "20000", "--seconds", "20", "--kills", "3"),
    "transactions": ("--flights", "6000", "--seconds", "20", "--kills", "4"),
    "spark": ("--flights", "6000", "--seconds", "20", "--kills", "4"),
    "migration": ("--only", "exact", "--seconds", "8", "--kills", "1", "--longest-delay", "6"),
}


@pytest.mark.parametrize("demo", DEMOS)
def test_the_demo_passes(demo: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    if demo == "spark":
        pytest.importorskip("pyspark", reason="pyspark isn't installed")
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    store = s3_server.new_store()
    finished = run_demo(f"{demo}_under_fire.py", *DEMOS[demo], "--store", store)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "all as it should be" in finished.stdout
    assert re.search(f"{store}/demo-[0-9a-f]+", re.sub(r"\s", "", finished.stdout))
