"""Old import paths of public names. They work for one version, with a `DeprecationWarning`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "velaray.arrow": "velaray.client.arrow",
    "velaray.auth": "velaray.client.auth",
    "velaray.consumer": "velaray.sync.consumer",
    "velaray.enums": "velaray.client.enums",
    "velaray.interceptors": "velaray.client.interceptors",
    "velaray.key_files": "velaray.topology.key_files",
    "velaray.message": "velaray.client.message",
    "velaray.message_id": "velaray.client.message_id",
    "velaray.options": "velaray.client.options",
    "velaray.policies": "velaray.client.policies",
    "velaray.producer": "velaray.sync.producer",
    "velaray.reader": "velaray.sync.reader",
    "velaray.receipt": "velaray.sync.receipt",
    "velaray.received": "velaray.client.received",
    "velaray.sent": "velaray.client.sent",
    "velaray.service_info": "velaray.client.service_info",
    "velaray.table_view": "velaray.sync.table_view",
    "velaray.topology.cluster": "velaray.cluster",
    "velaray.topology.discovery": "velaray.discovery",
    "velaray.transaction": "velaray.sync.transaction",
}
"""Old module to new module."""


class _Alias(Loader):
    """Loads the module at the new path."""

    def __init__(self, new: str) -> None:
        self._new = new

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module at the new path, imported if necessary."""
        module = import_module(self._new)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec: it was executed under its new name."""
        module.__spec__ = self._spec


class OldPaths(MetaPathFinder):
    """Finds modules at their old paths."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """The spec of a module that moved, or None."""
        new = MOVED.get(fullname)
        if new is None:
            return None
        warnings.warn(
            f"{fullname} moved to {new}; the old path will be removed in the next version",
            DeprecationWarning,
            stacklevel=2,
        )
        return ModuleSpec(fullname, _Alias(new))


def install() -> None:
    """Append the finder of old paths after all other finders."""
    if not any(isinstance(finder, OldPaths) for finder in sys.meta_path):
        sys.meta_path.append(OldPaths())
