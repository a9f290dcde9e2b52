"""What Spark needs here: pyspark, Java, and room; and the errors that say what is missing."""

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
# Spark refuses a heap that is smaller, and reckons with so much beside it.
SMALLEST_HEAP = 450 * MIB
SMALLEST_OVERHEAD = 384 * MIB
_JAVA_TIMEOUT_S = 30.0


class SparkSetupError(RuntimeError):
    """Spark, or Ray on it, can't be brought up; the text says why and what to do."""


class SparkMissing(SparkSetupError):
    """Java or pyspark is missing, or too old."""


class NotEnoughResources(SparkSetupError):
    """Ray's resources, or Spark's slots or memory, don't suffice; the text says what there is."""


def require_spark() -> Path:
    """The folder of the Spark that pyspark carries; raises `SparkMissing`."""
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
        raise SparkMissing(f"{java} doesn't tell its version: {told.stderr.strip()!r}")
    if int(found[1]) < JAVA:
        raise SparkMissing(f"{java} is Java {found[1]}: Spark needs {JAVA}, set JAVA_HOME to one")


def check_sizes(workers: int, cores: int, memory: int) -> None:
    """Raises `InvalidConfiguration` for sizes of which there is none."""
    for name, value in (("workers", workers), ("cores", cores), ("memory", memory)):
        if not isinstance(value, int) or value < 1:
            raise InvalidConfiguration(f"{name}={value!r}: a whole number, at least 1")


def heap_of(memory: int) -> int:
    """What is heap, in MiB, of the memory of a worker: bytes, less a tenth or 384 MiB.

    Raises `InvalidConfiguration` if too little is left for Spark.
    """
    heap = memory - max(memory // 10, SMALLEST_OVERHEAD)
    if heap < SMALLEST_HEAP:
        least = (SMALLEST_HEAP + SMALLEST_OVERHEAD) // MIB
        raise InvalidConfiguration(
            f"memory={memory}: a worker needs at least {least} MiB ({least * MIB} bytes)"
        )
    return heap // MIB
