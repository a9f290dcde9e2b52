"""Ray with TLS, set up by one option: drivers without its certificates can't connect."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ray.support import GENEROUS_S
from tests.ray.test_ray_address import RUNNING, START, lines_until
from velaray.client.tls import TlsFilesError
from velaray.topology.ray_tls import CA, CA_KEY, CERT, KEY, _check, _issue, _make_authority

DRIVER = """
import sys, ray
from velaray.topology.ray_connection import connect_ray
connect_ray(sys.argv[1])
import velaray
ray.get(velaray.handle("t").publish.remote(b"by TLS"))
print(velaray.service_url())
"""
ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""With it, Ray's nodes have the address 127.0.0.1."""


def drive(address: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", DRIVER, address],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [each for child in map(int, children) for each in (child, *descendants(child))]


def listening(pids: list[int]) -> list[tuple[str, str]]:
    """Where processes listen, as ADDRESS:PORT in hexadecimal, with the names of the processes."""
    sockets = {}
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(link) if link.is_symlink() else ""
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            sockets[target.removeprefix("socket:[").removesuffix("]")] = name
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:  # LISTEN
                found.append((fields[1], sockets[fields[9]]))
    return found


def answers(address: str, authority: Path, own: Path) -> bool:
    """Whether Ray talks to a client with the certificate in ``own``."""
    context = ssl.create_default_context(cafile=str(authority / CA))
    context.load_cert_chain(own / CERT, own / KEY)
    context.set_alpn_protocols(["h2"])
    host, _, port = address.partition(":")
    try:
        with (
            socket.create_connection((host, int(port)), timeout=GENEROUS_S) as connection,
            context.wrap_socket(connection, server_hostname=host) as secured,
        ):
            return bool(secured.recv(1000))  # HTTP/2 begins with the settings of the server
    except (ssl.SSLError, ConnectionError):
        return False


@pytest.mark.long
@pytest.mark.timeout(300)
def test_drivers_without_certificates_cannot_connect(data_dir: Path) -> None:
    tls = data_dir / "tls"
    clean = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment = {**clean, **ON_LOOPBACK}
    command = [sys.executable, *START, "--data", str(data_dir / "data"), "--ray-tls", str(tls)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as started:
        try:
            said = lines_until(started, lambda line: line.startswith(RUNNING))
            (url,) = re.findall(r"service +(pulsar://\S+)", said)
            processes = descendants(started.pid)
            (port,) = [place for place, name in listening(processes) if name == "gcs_server"]
            address = f"127.0.0.1:{int(port.rpartition(':')[2], 16)}"
            refused = drive(address, environment)
            assert refused.returncode == 1
            assert f"Ray at {address} requires TLS: set RAY_USE_TLS=1" in refused.stderr
            with_certificates = {
                "RAY_USE_TLS": "1",
                "RAY_TLS_SERVER_CERT": str(tls / CERT),
                "RAY_TLS_SERVER_KEY": str(tls / KEY),
                "RAY_TLS_CA_CERT": str(tls / CA),
            }
            done = drive(address, environment | with_certificates)
            assert done.stdout == f"{url}\n", done.stderr
            other = data_dir / "other"
            other.mkdir()
            _make_authority(other)
            _issue(other)
            assert answers(address, tls, tls)
            assert not answers(address, tls, other)
            opened = listening(processes)
            loopback = {"0100007F", "0000000000000000FFFF00000100007F"}
            assert {place.partition(":")[0] for place, _ in opened} <= loopback, opened
        finally:
            started.send_signal(signal.SIGTERM)
        assert started.wait(GENEROUS_S) == 0


def test_keys_are_private_and_certificates_are_renewed(tmp_path: Path) -> None:
    _make_authority(tmp_path)
    with pytest.raises(TlsFilesError, match=r"it lacks tls\.crt and tls\.key"):
        _check(tmp_path)
    _issue(tmp_path)
    _check(tmp_path)
    first = (tmp_path / CERT).read_bytes()
    _issue(tmp_path)
    _check(tmp_path)
    assert (tmp_path / CERT).read_bytes() != first
    for name in (KEY, CA_KEY):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
