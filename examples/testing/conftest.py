"""Enables the fixtures of `velaray.testing` for this suite."""

from __future__ import annotations

pytest_plugins = ["velaray.testing"]
