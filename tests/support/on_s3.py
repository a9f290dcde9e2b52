"""The marker of tests on the S3 server."""

from __future__ import annotations

import pytest

from tests.support.s3_server import installed

on_s3 = pytest.mark.slow if installed().exists() else pytest.mark.long
"""``long`` where the server has to be built first."""
