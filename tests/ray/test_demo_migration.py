"""A small run of the demo of migration: a tenant moves between two Ray clusters under SIGKILLs."""

from __future__ import annotations

import pytest

from tests.ray.support import run_demo

SMALL = ("--only", "exact", "--seconds", "4", "--kills", "1", "--longest-delay", "6")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_demo_passes() -> None:
    finished = run_demo("migration_under_fire.py", *SMALL)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "all as it should be" in finished.stdout
