"""Peers' servers are fetched, or named with what to install, before anything is measured."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import install
from benchmarks.contract import Absent

_APT = """#!/bin/sh
case "$*" in
  *simulate*) [ -e lists ] || [ -e "$0.lists" ] || exit 100
    echo 'Inst libx (1 Debian [amd64])'; echo 'Inst redis-server (7 Debian [amd64])' ;;
  *update*) touch "$0.lists" ;;
  *download*) shift 2; for each; do echo "$each" > "$each.deb"; done ;;
esac
"""
_DPKG = """#!/bin/sh
mkdir -p "$3/usr/bin" "$3/usr/lib/x86_64-linux-gnu" "$3/usr/lib/erlang/bin"
cp "$2" "$3/usr/bin/$(basename "$2" .deb)"
chmod +x "$3/usr/bin/$(basename "$2" .deb)"
echo 'ROOTDIR=/usr/lib/erlang' > "$3/usr/lib/erlang/bin/erl"
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of programs, besides the shell's own."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("mkdir", "cp", "basename", "chmod", "touch", "sh"):
        (tools / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("VELARAY_BENCH_CACHE", str(tmp_path / "cache"))
    return tools


def tool(path: Path, name: str, text: str) -> None:
    (path / name).write_text(text)
    (path / name).chmod(0o755)


def test_debians_packages_are_unpacked_without_being_installed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(path, "apt-get", _APT)
    tool(path, "dpkg-deb", _DPKG)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert {"redis", "rabbitmq"} <= set(install.missing())
    assert install.install(["redis"]) == {}
    assert "redis" not in install.missing()
    folder = install.cache() / "redis"
    server = install.redis_server()
    assert server.path == str(folder / "usr/bin/redis-server")
    assert server.environment["PATH"].split(":")[0] == str(folder / "usr/bin")
    assert server.environment["LD_LIBRARY_PATH"] == str(folder / "usr/lib/x86_64-linux-gnu")
    assert (folder / "usr/bin/libx").exists()
    assert f"={folder}/usr/lib/erlang" in (folder / "usr/lib/erlang/bin/erl").read_text()


def test_without_root_the_output_of_apt_is_reported(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(path, "apt-get", "#!/bin/sh\necho 'E: Unable to locate package' >&2\nexit 100\n")
    tool(path, "dpkg-deb", _DPKG)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "Unable to locate package" in install.install(["rabbitmq"])["rabbitmq"]
    with pytest.raises(Absent, match="no rabbitmq-server: install it"):
        install.check("rabbitmq")


def test_an_installed_server_is_used(path: Path) -> None:
    tool(path, "redis-server", "#!/bin/sh\n")
    assert install.redis_server().path == str(path / "redis-server")
    assert "redis" not in install.missing()


def test_a_missing_peer_ends_the_run_before_anything_is_measured(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "measure", lambda *_: pytest.fail("measured"))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--peers", "velaray,redis,nats,ray-queue"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "redis-always can't be measured: no redis-server: install it" in said
    assert "apt-get isn't on the PATH" in said
    assert "nats can't be measured" in said and "go isn't on the PATH" in said
    assert "--peers velaray,velaray-relaxed,ray-queue" in said
