"""A cluster under attack: slow peers, floods of connections, requests and topics."""

from __future__ import annotations

import pytest

from tests.security.soak import LONG, Scale, check, run


@pytest.mark.slow
def test_a_cluster_under_attack_serves_a_client_within_its_memory() -> None:
    scale = Scale()
    check(run(scale), scale)


@pytest.mark.long
def test_a_cluster_under_a_flood_of_100_000_connections() -> None:
    check(run(LONG), LONG)
