"""What every test starts from: a quiet Ray, and hypothesis without wall-clock limits."""

import gc
import os
import secrets
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from benchmarks.contract import Absent
from tests.support.s3_server import S3Server, running

# Before anything imports ray: send nothing home, and ask for a token, but not for the user's.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ["RAY_AUTH_MODE"] = "token"
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

# JVMs of tests don't live long enough for what their optimizing compiler costs.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# A shell's background jobs ignore Ctrl-C, and so would processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Two cores that other work shares say nothing about how long an example should take.
settings.register_profile("velaray", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("velaray")


SPARK = "tests/spark/"
"""Its tests share one Spark session, which takes a minute to start and to become fast."""


class Scheduler(LoadFileScheduling):
    """The tests of a file run in one process, and so do all tests of Spark."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Replace the scheduler of ``--dist loadfile``."""
    return Scheduler(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of Spark first: as the longest work of one process they must not begin last."""
    items.sort(key=lambda item: not item.nodeid.startswith(SPARK))


def pytest_collection_finish() -> None:
    """Leave what was imported and collected to no later garbage collection: it is 600,000 objects,
    which take 0.4 s each time."""
    gc.collect()
    gc.freeze()


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
