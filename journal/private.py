"""Files and directories that only their owner can read, whatever the umask allows."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
_OTHERS: Final = 0o077


def make_private(directory: Path) -> None:
    """Create a directory and its missing parents; those that exist stay as they are.

    Raises `OSError`.
    """
    try:
        directory.mkdir(DIRECTORY_MODE, exist_ok=True)
    except FileNotFoundError:
        make_private(directory.parent)
        directory.mkdir(DIRECTORY_MODE, exist_ok=True)


def private_opener(path: str, flags: int) -> int:
    """The ``opener`` of `open` that creates files for their owner alone."""
    return os.open(path, flags, FILE_MODE)


def tighten(root: Path, names: Collection[str]) -> None:
    """Remove the permissions of other users from those ``names`` in a directory that exist.

    The same is done with the directory itself, unless it contains anything else. Raises `OSError`.
    """
    found = set(os.listdir(root))
    own = [root / name for name in sorted(found.intersection(names))]
    for path in own if found.difference(names) else [root, *own]:
        mode = path.stat().st_mode
        if mode & _OTHERS:
            path.chmod(mode & ~_OTHERS & 0o7777)
