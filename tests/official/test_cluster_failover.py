"""The official client's own failover, with velaray's clusters."""

from pathlib import Path

import pulsar

from tests.support.disaster import goes_on_and_comes_back


def test_the_official_client_goes_on_in_the_other_cluster_and_comes_back(tmp_path: Path) -> None:
    goes_on_and_comes_back(tmp_path, pulsar, {})
