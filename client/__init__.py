"""The asyncio client: connections, producers, consumers, readers, transactions, schemas."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    # The old import path of a public name, kept for one version. It is imported by name, since it
    # is in a layer above.
    if name == "Client":
        warnings.warn(
            "import Client from velaray; the old path will be removed in the next version",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(import_module("velaray.sync.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
