"""Faults of the store of a cluster, for the journals of chosen actors: appends that wait or fail,
and recoveries that wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.local_cluster import LocalCluster
from velaray.events.ids import ActorKey
from velaray.journal.errors import SyncFailed
from velaray.journal.store import Buffer, LedgerWriter


class Gate:
    """A place where the store waits until the test opens it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._open = asyncio.Event()
        self._failing = False
        self.reached = threading.Event()
        self.passed = threading.Event()

    async def wait(self) -> None:
        self.reached.set()
        await self._open.wait()

    def end(self, journal: str) -> None:
        """Raises `SyncFailed` if the work that was held is to fail."""
        self.passed.set()
        if self._failing:
            raise SyncFailed(journal, "an injected fault")

    def open(self, *, failing: bool = False) -> None:
        """End the wait. If ``failing``, what was held is done but reported as failed."""
        self._failing = failing
        self._loop.call_soon_threadsafe(self._open.set)


class WriteFaults:
    """The faults of one cluster. Each concerns the next use of a journal, and no later one."""

    def __init__(self, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        store = cluster.actor_system.store
        self._loop = cluster.loop
        self._create = store.create_ledger
        self._before: dict[str, Gate] = {}
        self._after: dict[str, Gate] = {}
        self._recoveries: dict[str, Gate] = {}
        self._gates: list[Gate] = []
        monkeypatch.setattr(store, "create_ledger", self._create_ledger)

    def hold_append(self, key: ActorKey, *, written: bool) -> Gate:
        """Hold the next append: when it is ``written`` and synced, or before it begins."""
        return self._gate(self._after if written else self._before, key)

    def hold_recovery(self, key: ActorKey) -> Gate:
        """Hold the next activation before its first write."""
        return self._gate(self._recoveries, key)

    def _gate(self, gates: dict[str, Gate], key: ActorKey) -> Gate:
        gate = gates[key.text()] = Gate(self._loop)
        self._gates.append(gate)
        return gate

    def open_all(self) -> None:
        """End all waits."""
        for gate in self._gates:
            gate.open()

    async def _create_ledger(self, journal: str, ledger_id: int, header: bytes, epoch: int) -> Any:
        gate = self._recoveries.pop(journal, None)
        if gate is not None:
            await gate.wait()
            gate.end(journal)
        return _Writer(await self._create(journal, ledger_id, header, epoch), journal, self)

    async def append(
        self, writer: LedgerWriter, journal: str, buffers: Sequence[Buffer], kwargs: Any
    ) -> bool:
        """Append, with the fault that the journal is to have."""
        before, after = self._before.pop(journal, None), self._after.pop(journal, None)
        if before is not None:
            await before.wait()
        owned = await writer.append(buffers, **kwargs)
        if after is not None:
            await after.wait()
        for gate in (before, after):
            if gate is not None:
                gate.end(journal)
        return owned


class _Writer:
    """A writer whose appends may have a fault."""

    def __init__(self, writer: LedgerWriter, journal: str, faults: WriteFaults) -> None:
        self._writer = writer
        self._journal = journal
        self._faults = faults

    async def append(self, buffers: Sequence[Buffer], **kwargs: Any) -> bool:
        return await self._faults.append(self._writer, self._journal, buffers, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)
