"""Machines on one machine: namespaces with processes, a network address and a disk of their own.

A machine is a set of Linux namespaces: of processes, the network, mounts and the host name. It
starts with an empty disk in memory and sees the file system outside read-only. When its first
process is killed, all others end at once, and its disk is gone. A switch connects machines; it is
in the network namespace of the process that makes them, which begins with `namespaces`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from under_fire import wait_for

ROOT = Path(__file__).resolve().parents[1]
NETWORK = "10.213.0.0/24"
SWITCH = "10.213.0.254"
"""The address of the process that makes the machines, and of the store."""
PATIENCE_S = 90.0
_NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--kill-child")
_TOOLS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "mount": "mount"}
_numbers = count(1)


class NoMachinesError(RuntimeError):
    """Machines can't be made here; the text says why and what to do."""


def namespaces() -> list[str]:
    """What a command begins with whose process may make machines. All of its processes end with it.

    Raises `NoMachinesError` if that isn't allowed here, or a tool is missing.
    """
    missing = [f"{tool} ({of})" for tool, of in _TOOLS.items() if shutil.which(tool) is None]
    if sys.platform != "linux" or missing:
        needs = ", ".join(missing) or "Linux"
        raise NoMachinesError(f"machines are made of Linux namespaces; this needs {needs}")
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    begun = ["unshare", *user, *_NAMESPACES, "--mount-proc"]
    tried = subprocess.run([*begun, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        raise NoMachinesError(
            f"namespaces can't be made here: {tried.stderr.strip()}. Run this as root, or allow "
            "user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
            "kernel.apparmor_restrict_unprivileged_userns); a container needs --privileged"
        )
    return begun


class Machine:
    """A machine that runs; made by `machine`."""

    def __init__(self, name: str, address: str, logs: Path, environment: Mapping[str, str]) -> None:
        """Start it, with an empty disk. The output of its processes goes to ``logs``.

        Raises `NoMachinesError`.
        """
        self.name = name
        self.address = address
        self._logs = logs
        self._port = f"{name}-{next(_numbers)}"
        own = {"HOME": "/tmp", "TMPDIR": "/tmp", "PYTHONPATH": str(ROOT)}
        self._environment = {**os.environ, **environment, **own}
        self._init = self._started()
        assert self._init.stdout is not None
        told = self._init.stdout.readline()
        if not told:
            raise NoMachinesError(f"a machine doesn't start: {self.log('init').strip()}")
        self._pid = int(told)
        try:
            self._plug()
        except subprocess.CalledProcessError as error:
            self.kill()
            raise NoMachinesError(f"a machine gets no network: {error.stderr.strip()}") from error

    def _started(self) -> subprocess.Popen[str]:
        script = str(Path(__file__).with_name("machine_init.py"))
        programs = {str(ROOT), sys.prefix, sys.base_prefix}
        command = [sys.executable, script, self.name, *sorted(programs)]
        with self._log_file("init").open("w") as errors:
            return subprocess.Popen(
                ["unshare", *_NAMESPACES, "--uts", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # Ctrl-C is for the process that makes machines
            )

    def _plug(self) -> None:
        # A machine that replaces another one has its hardware address, as others remember it.
        hardware = f"02:00:00:00:00:{int(self.address.rpartition('.')[2]):02x}"
        inside = ("peer", "name", "wire", "address", hardware, "netns", str(self._pid))
        _ip("link", "add", self._port, "type", "veth", *inside)
        _ip("link", "set", self._port, "master", "switch", "up")
        here = ("nsenter", "--target", str(self._pid), "--net")
        _ip("address", "add", f"{self.address}/24", "dev", "wire", within=here)
        for link in ("lo", "wire"):
            _ip("link", "set", link, "up", within=here)

    def run(self, called: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start Python here. What it writes is in the log of that name."""
        entered = ["nsenter", "--target", str(self._pid), "--net", "--mount", "--pid", "--uts"]
        with self._log_file(called).open("w") as log:
            return subprocess.Popen(
                [*entered, sys.executable, *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def put(self, name: str, content: bytes) -> str:
        """Write a file to its disk, and return the path there."""
        Path("/proc", str(self._pid), "root", "tmp", name).write_bytes(content)
        return f"/tmp/{name}"

    def log(self, called: str) -> str:
        """What a process wrote until now."""
        return self._log_file(called).read_text(errors="replace")

    def run_until(self, called: str, text: str, *arguments: str) -> None:
        """Start Python here, and return when it has written ``text``.

        Raises `SystemExit` with its last lines if it ends before, or takes too long.
        """
        process = self.run(called, *arguments)

        def over() -> bool:
            return text in self.log(called) or process.poll() is not None

        wait_for(over, PATIENCE_S)
        if text not in self.log(called):
            end = "\n".join(self.log(called).splitlines()[-20:])
            raise SystemExit(f"{called} on machine {self.name} didn't start; it wrote:\n{end}")

    def processes(self) -> list[int]:
        """The ids of its living processes, as others see them, without the first one."""
        own = os.readlink(f"/proc/{self._pid}/ns/pid")
        return [pid for pid in _pids() if pid != self._pid and _namespace_of(pid) == own]

    def ray_node(self) -> str:
        """The id of the node that Ray has here; "" if none runs."""
        for pid in self.processes():
            with suppress(OSError):
                for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    if word.startswith(b"--node_id="):
                        return word.partition(b"=")[2].decode()
        return ""

    def end_processes(self) -> None:
        """Kill every process, but leave the machine and its disk."""

        def none_is_left() -> bool:
            left = self.processes()
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        if not wait_for(none_is_left, PATIENCE_S):
            raise SystemExit(f"processes of machine {self.name} don't end: {self.processes()}")

    def unplug(self) -> None:
        """Take it off the network at once: nothing more comes from it, not even the end of a
        connection."""
        _ip("link", "set", self._port, "down")

    def kill(self) -> None:
        """End all its processes at once. Its disk is gone."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._init.wait(PATIENCE_S)

    def _log_file(self, called: str) -> Path:
        return self._logs / f"{self._port}-{called}.log"


@contextmanager
def switch() -> Iterator[None]:
    """The switch that connects the machines.

    This process is in their network, with the address `SWITCH`.

    Raises `NoMachinesError`.
    """
    try:
        _ip("link", "add", "switch", "type", "bridge")
        _ip("address", "add", f"{SWITCH}/24", "dev", "switch")
        for link in ("lo", "switch"):
            _ip("link", "set", link, "up")
    except subprocess.CalledProcessError as error:
        raise NoMachinesError(f"machines can't be connected: {error.stderr.strip()}") from error
    try:
        yield
    finally:
        _ip("link", "delete", "switch")


def _ip(*arguments: str, within: Sequence[str] = ()) -> None:
    subprocess.run([*within, "ip", *arguments], check=True, capture_output=True, text=True)


def _pids() -> list[int]:
    return [int(each.name) for each in Path("/proc").glob("[0-9]*")]


def _namespace_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""  # it has ended
