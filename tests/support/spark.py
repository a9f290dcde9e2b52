"""What tests on real Spark need: whether it can run here, and who still holds on to a folder."""

from __future__ import annotations

import os
from pathlib import Path

from velaray.pipelines.spark_on_ray_needs import SparkMissing, require_spark


def missing() -> str:
    """Why Spark can't run here; empty if it can."""
    try:
        require_spark()
    except SparkMissing as error:
        return str(error)
    return ""


def processes_naming(text: str) -> list[int]:
    """The processes whose environment or command line has the text, but this one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            said = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended, or is another user's
        if text.encode() in said and process.name != str(os.getpid()):
            found.append(int(process.name))
    return found
