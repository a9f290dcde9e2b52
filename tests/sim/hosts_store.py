"""The store of a simulated host: its operations belong to actors."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any

from tests.sim.cluster import SimStore
from tests.sim.loop import current_node
from velaray.journal import memory

Replace = Callable[[Any, str, Any], None]

_NESTED: ContextVar[bool] = ContextVar("nested", default=False)
"""Whether an operation is part of another one."""

OPERATIONS = (
    *("read_manifest", "write_manifest", "holds", "claim_number", "create_ledger", "read"),
    *("read_mark", "sync_ledger", "write_index", "read_index", "delete_ledger", "delete_journal"),
)
WRITER_OPERATIONS = ("append", "append_unsynced", "sync")


class HostStore(SimStore):
    """A `SimStore` that many actors use."""


def counted(operation: Any) -> Any:
    """The operation; its actor knows when it is under way, and whether it should have begun."""

    @wraps(operation)
    async def watched(self: Any, *arguments: Any, **named: Any) -> Any:
        node: Any = current_node()
        if not hasattr(node, "operations") or _NESTED.get():
            return await operation(self, *arguments, **named)
        node.cluster.watch.operation(node, operation.__name__)
        node.operations += 1
        token = _NESTED.set(True)
        try:
            return await operation(self, *arguments, **named)
        finally:
            _NESTED.reset(token)
            node.operations -= 1
            node.cluster.watch.operation_over(node)

    return watched


for _name in OPERATIONS:
    setattr(HostStore, _name, counted(getattr(SimStore, _name)))


def watch_writers(replace: Replace) -> None:
    """Watch what writers of ledgers do, too."""
    for name in WRITER_OPERATIONS:
        replace(memory._MemoryWriter, name, counted(getattr(memory._MemoryWriter, name)))
