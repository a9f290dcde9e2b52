"""What the Ray nodes that Spark's tasks start find in their environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ray.util.spark.start_hook_base import RayOnSparkStartHook

_PASSED_ON = ("RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED")


class StartHook(RayOnSparkStartHook):
    """Has every node find ``ray`` and agree with the driver on how to authenticate."""

    def __init__(self) -> None:
        """Ray makes it without arguments, and its base class wants one."""
        super().__init__(is_global=False)

    def custom_environment_variables(self) -> dict[str, str]:
        """By name."""
        beside_python = Path(sys.executable).parent
        path = os.pathsep.join([str(beside_python), os.environ.get("PATH", os.defpath)])
        passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        return {**passed_on, "PATH": path}
