"""The range of ports that the processes of actors listen on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

import velaray
from velaray.cli.app import main
from velaray.events.ids import ActorKind
from velaray.local import LocalCluster
from velaray.starting import free_port
from velaray.topology.ports import PortUnavailable, listen

HOST = "127.0.0.1"


def test_a_cluster_listens_in_the_range(tmp_path: Path) -> None:
    first = free_port(HOST)
    with (
        LocalCluster.start(tmp_path, port_range=(first, first + 50)) as cluster,
        velaray.Client(cluster.service_url) as client,
    ):
        client.create_producer("t").send(b"x")
        system = cluster.actor_system
        partitions = [key for key in system.actors if key.kind is ActorKind.PARTITION]
        assert partitions
        for key in partitions:
            address = cluster._run(system.address(key), 20.0)
            assert first <= address.service_port <= first + 50
            assert first <= address.rpc_port <= first + 50


def test_ports_in_use_are_skipped_until_none_is_left() -> None:
    async def scenario() -> None:
        first = free_port(HOST)
        one = await listen(asyncio.Protocol, HOST, (first, first + 1))
        two = await listen(asyncio.Protocol, HOST, (first, first + 1))
        found = {server.sockets[0].getsockname()[1] for server in (one, two)}
        assert found == {first, first + 1}
        with pytest.raises(PortUnavailable, match="all in use: give a wider --port-range"):
            await listen(asyncio.Protocol, HOST, (first, first + 1))
        one.close()
        two.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("given", ["6700", "6799-6700", "0-5", "1-70000", "a-b", "6700-"])
def test_another_form_is_refused(given: str, tmp_path: Path) -> None:
    arguments = ["start", "--local", "--data", str(tmp_path), "--port-range", given]
    refused = CliRunner().invoke(main, arguments)
    assert refused.exit_code == 2
    assert "write FIRST-LAST, such as 6700-6799" in refused.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [(0, 5), (9, 8), (1, 70_000)])
def test_the_api_refuses_it_too(given: tuple[int, int], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="port_range="):
        LocalCluster.start(tmp_path / "data", port_range=given)
