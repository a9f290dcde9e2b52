"""Servers of the peers: fetched once, each with its ecosystem's own client, and found again."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from benchmarks import debian
from benchmarks.contract import Absent
from benchmarks.debian import Program

NATS_SERVER = "github.com/nats-io/nats-server/v2@v2.10.29"
_POMS = Path(__file__).parent / "maven"
_PACKAGES = {"redis": "redis-server", "rabbitmq": "rabbitmq-server"}


def cache() -> Path:
    """Where fetched servers are kept: ``VELARAY_BENCH_CACHE`` or below the user's cache."""
    given = os.environ.get("VELARAY_BENCH_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "velaray-bench"


def nats_server() -> str:
    """The path of a fetched ``nats-server``. Raises `Absent`."""
    path = cache() / "bin" / "nats-server"
    if not path.exists():
        raise Absent("no nats-server 2.10: run `python -m benchmarks install`, it needs go")
    return str(path)


def class_path(name: str) -> str:
    """The Java class path of ``kafka`` or ``pulsar``. Raises `Absent`."""
    folder = cache() / name
    if not _complete(folder):
        raise Absent(f"no {name}: run `python -m benchmarks install`, it needs maven")
    if shutil.which("java") is None:
        raise Absent(f"{name} needs java, which isn't on the PATH")
    return f"{folder}/*"


def redis_server() -> Program:
    """``redis-server``. Raises `Absent`."""
    return _program("redis", "usr/bin/redis-server", "redis-server")


def rabbitmq_server() -> Program:
    """``rabbitmq-server``, without the wrapper that asks for root. Raises `Absent`."""
    script = "usr/lib/rabbitmq/bin/rabbitmq-server"
    return _program("rabbitmq", script, f"/{script}", "rabbitmq-server")


def _program(family: str, path: str, *places: str) -> Program:
    found = debian.in_system(*places)
    if found is not None:
        return found
    if not _complete(cache() / family):
        package = _PACKAGES[family]
        raise Absent(f"no {package}: install it, or fetch it with `python -m benchmarks install`")
    return debian.in_folder(cache() / family, path)


def missing() -> list[str]:
    """The families of peers whose servers aren't there yet."""
    return [family for family in _SERVERS if not _is_there(family)]


def _is_there(family: str) -> bool:
    try:
        check(family)
    except Absent:
        return False
    return True


def check(family: str) -> None:
    """Raise `Absent` if the server of a family of peers, like ``redis``, isn't there."""
    find = _SERVERS.get(family)
    if find is not None:
        find()


def install(names: list[str]) -> dict[str, str]:
    """Fetch these. Returns for each that failed why; the others are there afterwards."""
    failed = {}
    for name in names:
        print(f"Fetching {name} into {cache()} (once) …", flush=True)
        try:
            if name == "nats":
                _install_nats()
            elif name in _PACKAGES:
                debian.unpack(_PACKAGES[name], cache() / name)
                _mark(cache() / name).touch()
            else:
                _install_jars(name)
        except Absent as error:
            failed[name] = str(error)
            print(f"  not fetched: {error}", flush=True)
    return failed


def _install_nats() -> None:
    environment = {**os.environ, "GOBIN": str(cache() / "bin")}
    _run(["go", "install", NATS_SERVER], environment)


def _install_jars(name: str) -> None:
    folder = cache() / name
    fetch_jars(_POMS / f"{name}.xml", folder)
    _mark(folder).touch()


def fetch_jars(pom: Path, folder: Path, within_s: float | None = None) -> None:
    """Put what a Maven project needs at run time into ``folder``. Raises `Absent`."""
    where = ["-s", str(_POMS / "settings.xml"), "-f", str(pom)]
    what = ["-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    words = ["mvn", "-q", "-B", *where, "dependency:copy-dependencies", *what]
    _run(words, dict(os.environ), within_s)


def _mark(folder: Path) -> Path:
    return folder / ".complete"


def _complete(folder: Path) -> bool:
    return _mark(folder).exists()


def _run(words: list[str], environment: dict[str, str], within_s: float | None = None) -> None:
    if shutil.which(words[0]) is None:
        raise Absent(f"{words[0]} isn't on the PATH")
    try:
        ended = subprocess.run(
            words, env=environment, capture_output=True, text=True, check=False, timeout=within_s
        )
    except subprocess.TimeoutExpired as error:
        raise Absent(f"{words[0]} took more than {within_s:g} s") from error
    if ended.returncode:
        raise Absent(f"{words[0]} failed: {(ended.stderr or ended.stdout)[-400:].strip()}")


_SERVERS: dict[str, Callable[[], object]] = {
    "redis": redis_server,
    "nats": nats_server,
    "rabbitmq": rabbitmq_server,
    "kafka": lambda: class_path("kafka"),
    "pulsar": lambda: class_path("pulsar"),
}
