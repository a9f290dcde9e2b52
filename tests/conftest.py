"""What every test starts from: a quiet Ray, no wall-clock limits, files with long tests first."""

import os

import pytest
from hypothesis import HealthCheck, settings

# Before anything imports ray: send nothing home, and ask for no token on this machine.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

# Two cores that other work shares say nothing about how long an example should take.
settings.register_profile("velaray", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("velaray")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with long tests come first: in the end no process waits for another one's minutes."""
    marks = ("ray", "slow")
    long = {item.path for item in items if any(map(item.get_closest_marker, marks))}
    items.sort(key=lambda item: item.path not in long)
