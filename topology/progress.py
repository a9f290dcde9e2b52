"""Messages about a wait that takes long."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Self

EVERY_S = 2.0


class Progress:
    """Prints a line to standard error every two seconds, within its block."""

    def __init__(self, what: str) -> None:
        """``what`` follows the word "still", for example "starting Ray"."""
        self._what = what
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def _run(self) -> None:
        passed = 0.0
        while not self._over.wait(EVERY_S):
            passed += EVERY_S
            line = f"velaray: still {self._what} ({passed:.0f} s)"
            print(line, file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
