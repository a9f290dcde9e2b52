"""The environment of the Ray nodes that Spark's tasks start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ray.util.spark.start_hook_base import RayOnSparkStartHook

from velaray.ray_access import ensure_ray_token

_PASSED_ON = ("RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED")


class StartHook(RayOnSparkStartHook):
    """Makes ``ray`` available on every node, and passes the driver's token for authentication."""

    def __init__(self) -> None:
        """Ray calls this without arguments, but the base class requires one."""
        super().__init__(is_global=False)  # type: ignore[no-untyped-call]

    def custom_environment_variables(self) -> dict[str, str]:
        """The environment variables by name."""
        beside_python = Path(sys.executable).parent
        path = os.pathsep.join([str(beside_python), os.environ.get("PATH", os.defpath)])
        token = ensure_ray_token()
        passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        return {**passed_on, "RAY_AUTH_TOKEN": token, "PATH": path}
