"""Programs of Debian's packages: from the system, or downloaded and unpacked without root.

Unpacked, they are not installed: nothing of the system changes and no service starts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contract import Absent

_WITHIN_S = 600.0
_LIBRARIES = "usr/lib/*-linux-gnu*"


@dataclass(frozen=True, slots=True)
class Program:
    """Where a program is, and the environment in which it finds its own files."""

    path: str
    environment: dict[str, str]


def in_system(*places: str) -> Program | None:
    """The first of these paths, or of these names on the PATH, that exists."""
    for place in places:
        if found := shutil.which(place):
            return Program(found, dict(os.environ))
    return None


def in_folder(folder: Path, path: str) -> Program:
    """A program of a package that `unpack` put into ``folder``."""
    environment = dict(os.environ)
    _prepend(environment, "PATH", [folder / "usr/bin"])
    _prepend(environment, "LD_LIBRARY_PATH", sorted(folder.glob(_LIBRARIES)))
    return Program(str(folder / path), environment)


def _prepend(environment: dict[str, str], name: str, folders: list[Path]) -> None:
    words = [*map(str, folders), environment.get(name, "")]
    environment[name] = os.pathsep.join(filter(None, words))


def unpack(package: str, folder: Path) -> None:
    """Put a package, and those that it needs and the system lacks, into ``folder``.

    Raises `Absent` where there is no Debian, or where its packages can't be fetched.
    """
    _check_tools()
    _fetch(_needed(package), folder, _WITHIN_S)
    erl = folder / "usr/lib/erlang/bin/erl"
    if erl.exists():  # Debian's script knows one place only
        text = erl.read_text()
        erl.write_text(text.replace("=/usr/lib/erlang", f"={folder}/usr/lib/erlang"))


def unpack_alone(package: str, folder: Path, within_s: float) -> None:
    """Put a package whose programs need no other one into ``folder``. Raises `Absent`."""
    _check_tools()
    _fetch([package], folder, within_s)


def _check_tools() -> None:
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise Absent(f"{tool} isn't on the PATH")


def _fetch(names: list[str], folder: Path, within_s: float) -> None:
    archives = folder / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    _run(["apt-get", "--quiet", "download", *names], archives, within_s)
    for archive in sorted(archives.glob("*.deb")):
        _run(["dpkg-deb", "--extract", str(archive), str(folder)], folder, within_s)
    shutil.rmtree(archives)


def _needed(package: str) -> list[str]:
    words = ["apt-get", "install", "--simulate", "--no-install-recommends", package]
    try:
        said = _run(words, Path.cwd())
    except Absent:
        if os.geteuid() != 0:
            raise
        _run(["apt-get", "--quiet", "update"], Path.cwd())  # the lists of packages are missing
        said = _run(words, Path.cwd())
    names = re.findall(r"^Inst (\S+)", said, re.MULTILINE)
    if not names:
        raise Absent(f"package {package} is installed, but its program isn't where it should be")
    return names


def _run(words: list[str], folder: Path, within_s: float = _WITHIN_S) -> str:
    try:
        ended = subprocess.run(
            words,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
            timeout=within_s,
        )
    except subprocess.TimeoutExpired as error:
        raise Absent(f"`{' '.join(words[:4])} …` took more than {within_s:g} s") from error
    if ended.returncode:
        problem = (ended.stderr or ended.stdout)[-400:].strip()
        raise Absent(f"`{' '.join(words[:4])} …` failed: {problem}")
    return ended.stdout
