"""Spark's requirements on this host: pyspark, Java and memory; and errors for missing ones."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from velaray.client.exceptions import InvalidConfiguration

JAVA = 17
MIB = 1 << 20
# Spark refuses a smaller heap, and expects this much memory besides the heap.
SMALLEST_HEAP = 450 * MIB
SMALLEST_OVERHEAD = 384 * MIB
_JAVA_TIMEOUT_S = 30.0


class SparkSetupError(RuntimeError):
    """Spark, or Ray on Spark, can't be started; the text contains the cause and the remedy."""


class SparkMissing(SparkSetupError):
    """Java or pyspark is missing, or too old."""


class NotEnoughResources(SparkSetupError):
    """Ray's resources, or Spark's slots or memory, don't suffice; the text lists them."""


def require_spark() -> Path:
    """Return the folder of pyspark's Spark; raises `SparkMissing`."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SparkMissing("pyspark isn't installed: pip install 'velaray[spark]'")
    try:
        found = version("pyspark")
    except PackageNotFoundError:
        found = "unknown"
    if not re.match(r"4\.[23]\.", found):
        raise SparkMissing(f"pyspark {found} is installed: pip install 'velaray[spark]' for 4.2")
    _require_java()
    return Path(spec.origin).parent


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        where = f"below JAVA_HOME={home}" if home else "on PATH, and JAVA_HOME isn't set"
        raise SparkMissing(f"there is no Java {where}: Spark needs Java {JAVA}, install it")
    told = subprocess.run(
        [java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=False
    )
    found = re.search(r'version "(\d+)', told.stderr)
    if found is None:
        raise SparkMissing(f"{java} -version gives no version: {told.stderr.strip()!r}")
    if int(found[1]) < JAVA:
        raise SparkMissing(f"{java} is Java {found[1]}: Spark needs {JAVA}, set JAVA_HOME to one")


def check_sizes(workers: int, cores: int, memory: int) -> None:
    """Raise `InvalidConfiguration` for sizes that aren't positive."""
    for name, value in (("workers", workers), ("cores", cores), ("memory", memory)):
        if not isinstance(value, int) or value < 1:
            raise InvalidConfiguration(f"{name}={value!r} must be a whole number of at least 1")


def heap_of(memory: int) -> int:
    """Return the heap in MiB for a worker's memory in bytes.

    The rest, a tenth or at least 384 MiB, is for other memory. Raises `InvalidConfiguration` if too
    little is left for Spark.
    """
    heap = memory - max(memory // 10, SMALLEST_OVERHEAD)
    if heap < SMALLEST_HEAP:
        least = (SMALLEST_HEAP + SMALLEST_OVERHEAD) // MIB
        raise InvalidConfiguration(
            f"memory={memory}: a worker needs at least {least} MiB ({least * MIB} bytes)"
        )
    return heap // MIB
