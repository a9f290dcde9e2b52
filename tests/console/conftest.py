"""The browser that the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.console.browsing import started


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium."""
    with started() as browser:
        yield browser
