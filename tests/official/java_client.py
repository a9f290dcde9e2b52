"""Programs with Pulsar's Java client: fetched once, compiled by the launcher, run to their end."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks.contract import Absent
from benchmarks.install import cache, fetch_jars
from tests.official import go_client

_FOLDER = Path(__file__).parent / "java"
_FETCH_WITHIN_S = 120.0
_RUN_WITHIN_S = 100.0


def class_path(pom: Path = _FOLDER / "pom.xml") -> str:
    """Of the Java client, or what else ``pom`` names, which is kept outside the tree.

    Raises `Absent` with the reason.
    """
    if shutil.which("java") is None:
        raise Absent("java isn't on the PATH")
    modules = subprocess.run(["java", "--list-modules"], capture_output=True, text=True, check=True)
    if "jdk.compiler" not in modules.stdout:
        raise Absent("this java can't compile")
    folder = cache() / f"java-client-{hashlib.sha256(pom.read_bytes()).hexdigest()[:16]}"
    if not folder.exists():
        cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache()) as fetching:
            fetch_jars(pom, Path(fetching) / "jars", _FETCH_WITHIN_S)
            with contextlib.suppress(OSError):  # another test was faster
                (Path(fetching) / "jars").rename(folder)
    return f"{folder}/*"


def running(
    path: str, program: str, *words: str
) -> contextlib.AbstractContextManager[go_client.Scenario]:
    """Run ``java/<program>.java`` meanwhile; it reads and prints lines."""
    return go_client.running("java", "-cp", path, str(_FOLDER / f"{program}.java"), *words)


def run(path: str, program: str, *words: str) -> None:
    """Run ``java/<program>.java``; fails with what it says if it doesn't end well."""
    ended = subprocess.run(
        ["java", "-cp", path, str(_FOLDER / f"{program}.java"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=_RUN_WITHIN_S,
    )
    assert ended.returncode == 0, ended.stdout[-4000:]
