"""What the Ray nodes that Spark's tasks start find in their environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ray.util.spark.start_hook_base import RayOnSparkStartHook

from velaray.ray_access import ensure_ray_token

_PASSED_ON = ("RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED")


class StartHook(RayOnSparkStartHook):
    """Has every node find ``ray`` and authenticate with the driver's token."""

    def __init__(self) -> None:
        """Ray makes it without arguments, and its base class wants one."""
        super().__init__(is_global=False)  # type: ignore[no-untyped-call]

    def custom_environment_variables(self) -> dict[str, str]:
        """By name."""
        beside_python = Path(sys.executable).parent
        path = os.pathsep.join([str(beside_python), os.environ.get("PATH", os.defpath)])
        token = ensure_ray_token()
        passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        return {**passed_on, "RAY_AUTH_TOKEN": token, "PATH": path}
