"""How a client chooses among the addresses of its service URL."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from velaray.client.connection import Connection
from velaray.client.exceptions import ConnectError
from velaray.client.lookup import Lookup
from velaray.client.options import ClientOptions
from velaray.client.pool import ConnectionPool


class _Pool:
    """Connects to one address only."""

    def __init__(self, serving: str) -> None:
        self._serving = serving
        self.tried: list[str] = []

    async def get(self, address: str) -> Connection:
        self.tried.append(address)
        await asyncio.sleep(0)  # all callers wait for the same attempt
        if address != self._serving:
            raise ConnectError(f"no connection to {address}")
        return cast(Connection, _Answering())


class _Answering:
    address = "b:1"

    async def request(self, request: Any, timeout: float) -> Any:
        return request


@pytest.mark.parametrize("callers", [1, 2, 3, 4])
def test_callers_that_fail_together_try_the_next_address(callers: int) -> None:
    pool = _Pool("b:1")
    lookup = Lookup(ClientOptions(service_url="pulsar://a:1,b:1"), cast(ConnectionPool, pool))

    async def ask() -> list[Any]:
        asked = (lookup.ask("what", 1.0) for _ in range(callers))
        return await asyncio.gather(*asked, return_exceptions=True)

    async def main() -> None:
        assert all(isinstance(answer, ConnectError) for answer in await ask())
        assert await ask() == [("b:1", "what")] * callers

    asyncio.run(main())
    assert pool.tried == ["a:1"] * callers + ["b:1"] * callers
