"""The official client's own failover, with velaray's clusters."""

from pathlib import Path

import pulsar

from tests.support.disaster import goes_on_and_comes_back


def test_the_official_client_fails_over_to_the_other_cluster_and_back(tmp_path: Path) -> None:
    goes_on_and_comes_back(tmp_path, pulsar, {})
