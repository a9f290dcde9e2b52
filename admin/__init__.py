"""The admin interface over HTTP, one file for each kind of resource."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    # The old import path of a public name, for one version. The name is a string, since its module
    # is in a higher layer.
    if name == "Admin":
        warnings.warn(
            "import Admin from velaray; the old path will be removed in the next version",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(import_module("velaray.client.admin"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
