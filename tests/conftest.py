"""What every test starts from: a quiet Ray, and hypothesis without wall-clock limits."""

import os
import secrets
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from benchmarks.contract import Absent
from tests.support.s3_server import S3Server, running

# Before anything imports ray: send nothing home, and ask for a token, but not for the user's.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ["RAY_AUTH_MODE"] = "token"
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

# Two cores that other work shares say nothing about how long an example should take.
settings.register_profile("velaray", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("velaray")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory) -> Iterator[S3Server]:
    """A server that all tests of this process share."""
    try:
        with running(tmp_path_factory.mktemp("s3")) as server:
            yield server
    except Absent as absent:
        pytest.skip(str(absent))


@pytest.fixture
def s3_url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store of the test's own; the environment has what leads to it."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server.new_store()
