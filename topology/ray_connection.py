"""Starting Ray, and connecting to it, with Ray's token authentication.

Callers of Ray can run code as its user, and Ray listens on every interface. So a Ray that velaray
starts requires a token. The token is where Ray looks for it, so other drivers of the same user find
it: in RAY_AUTH_TOKEN, in the file that RAY_AUTH_TOKEN_PATH names, or in ``~/.ray/auth_token``,
which `ensure_token` creates if there is no token yet.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import stat
import subprocess
import sys
import tempfile
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import ray
from ray._raylet import (  # type: ignore[attr-defined]
    AuthenticationMode,
    AuthenticationTokenLoader,
    Config,
    get_authentication_mode,
)
from ray.exceptions import RayError

from velaray.topology import ray_probe
from velaray.topology.progress import Progress
from velaray.topology.ray_probe import Outcome
from velaray.topology.ray_start import patient_start

MODE = "RAY_AUTH_MODE"
TOKEN = "RAY_AUTH_TOKEN"
TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
_TOKEN_MODE = "token"
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
_PROBE_S = 60.0
"""A probe ends by itself; this limit is for machines that are too slow to start a process."""


class RayUnavailable(ConnectionError):
    """Ray can't be reached or started; the text has the reason and a remedy."""


# --- the token ---


def ensure_token() -> None:
    """Turn on Ray's token authentication for this process and its child processes.

    Creates a token if there is none. Raises `RayUnavailable` if a setting names a token that
    doesn't exist, or if a token can't be stored.
    """
    mode = os.environ.get(MODE, _TOKEN_MODE)
    if mode.lower() != _TOKEN_MODE:
        _say(f"{MODE}={mode} doesn't apply: a Ray that velaray starts asks for a token")
    if not os.environ.get(TOKEN):
        _ensure_file()
    _turn_on()


def token() -> str:
    """The token of this process, after `ensure_token`."""
    return os.environ.get(TOKEN) or _token_file().read_text(encoding="utf-8").strip()


def _ensure_file() -> None:
    path = _token_file()
    try:
        if TOKEN_PATH not in os.environ:
            _make_token(path)
        if not path.read_text(encoding="utf-8").strip():
            raise RayUnavailable(f"{path} holds no token: put one in, or set {TOKEN}")
    except OSError as error:
        raise RayUnavailable(
            f"Ray's token can't be kept in {path} ({error.strerror}): set {TOKEN_PATH} to a file "
            f"that holds one, or {TOKEN}"
        ) from error


def _make_token(path: Path) -> None:
    """Create the token unless there is one; of several concurrent processes only one creates it."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix="auth_token.") as made:
            made.write(secrets.token_hex(32))
            made.flush()
            os.fsync(made.fileno())
            try:
                os.link(made.name, path)
            except FileExistsError:
                return
    found = path.stat()
    if stat.S_IMODE(found.st_mode) & 0o077 and found.st_uid == os.getuid():
        path.chmod(0o600)
        _say(f"other users of this machine could read Ray's token in {path}: it is now private")


def _token_file() -> Path:
    named = os.environ.get(TOKEN_PATH)
    return Path(named) if named else Path.home() / ".ray" / "auth_token"


def _turn_on() -> None:
    """Make Ray read the environment again: it has read it when it was imported."""
    os.environ[MODE] = _TOKEN_MODE
    AuthenticationTokenLoader.instance().reset_cache()
    Config.initialize("")


def _adopt_token(address: str) -> None:
    """Use this user's token with a Ray on this machine, unless the environment sets one.

    Newer versions of Ray do so themselves if they get no address. The token isn't sent to other
    machines unless it is configured: the server there would learn it.
    """
    has_token = os.environ.get(TOKEN) or _token_file().is_file()
    if MODE not in os.environ and has_token and _is_here(address):
        _turn_on()


def _is_here(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    if address in ("auto", "local") or host in ("localhost", ray.util.get_node_ip_address()):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _say(text: str) -> None:
    print(f"velaray: {text}", file=sys.stderr, flush=True)


# --- connecting ---


def start_ray(**options: Any) -> None:
    """Start Ray on this machine, with token authentication, and connect to it.

    ``options`` are those of ``ray.init``. Raises `RayUnavailable`.
    """
    ensure_token()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        with Progress("starting Ray"), patient_start():
            # "local" excludes other clusters that run on this machine.
            ray.init(address="local", include_dashboard=False, **QUIET, **options)
    except (RayError, OSError, ValueError, RuntimeError) as error:
        raise RayUnavailable(
            f"Ray didn't start: {one_line(error)}. See whether /dev/shm and /tmp have room, and "
            "the logs in /tmp/ray/session_latest/logs"
        ) from error
    _mute()


def stop_ray() -> None:
    """Disconnect from the Ray that `start_ray` started, which ends it."""
    ray.shutdown()
    ray._private.worker._worker_logs_enabled = True


def connect_ray(address: str = "auto") -> None:
    """Connect this process to the Ray at an address, or to the one on this machine.

    Raises `RayUnavailable`.
    """
    _adopt_token(address)
    with Progress(f"connecting to Ray at {address}"):
        if "://" not in address:
            outcome, told = _probe(address, dict(os.environ))
            if outcome is not Outcome.WELCOME:
                raise RayUnavailable(_complaint(outcome, address, told))
        try:
            ray.init(address=address, **QUIET)
        except (RayError, OSError, ValueError, RuntimeError) as error:
            raise RayUnavailable(
                f"Ray at {address} can't be connected to: {one_line(error)}"
            ) from error
    _mute()


def _mute() -> None:
    """Keep Ray's reports about its processes off this terminal. With ``log_to_driver`` false Ray
    doesn't print their output, but it still prints lines about killed processes."""
    ray._private.worker._worker_logs_enabled = False


def one_line(error: BaseException) -> str:
    """The error's text as one line; that of the cause, if Ray's error has one."""
    cause = getattr(error, "cause", None)
    told = cause if isinstance(cause, BaseException) else error
    lines = [line.strip() for line in str(told).splitlines() if line.strip()]
    return lines[0] if lines else type(told).__name__


def _complaint(outcome: Outcome, address: str, told: str) -> str:
    if outcome is Outcome.REFUSED:
        return (
            f"Ray at {told} refuses this process without its token: set {MODE}=token, and "
            f"{TOKEN_PATH} to the file that holds the token (~/.ray/auth_token of the user who "
            f"started Ray), or {TOKEN}"
        )
    if outcome is Outcome.NO_TLS:
        return (
            f"Ray at {told} requires TLS: set RAY_USE_TLS=1, and RAY_TLS_SERVER_CERT, "
            "RAY_TLS_SERVER_KEY and RAY_TLS_CA_CERT to files of the directory of --ray-tls"
        )
    if outcome is Outcome.NONE:
        return "no Ray runs on this machine: start one with `velaray start` or `ray start --head`"
    return (
        f"no Ray answers at {address} ({told}): start one there with `ray start --head`, or give "
        "the address that it printed when it was started"
    )


def is_open() -> bool:
    """Whether the Ray that this process is connected to serves callers without a token."""
    if get_authentication_mode() != AuthenticationMode.TOKEN:
        return True  # it serves this process
    left_out = (TOKEN, TOKEN_PATH)
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    address = ray.get_runtime_context().gcs_address
    outcome, told = _probe(address, {**environment, MODE: "disabled"})
    if outcome in (Outcome.UNREACHABLE, Outcome.NO_TLS, Outcome.NONE):
        raise RayUnavailable(_complaint(outcome, address, told))
    return outcome is Outcome.WELCOME


def _probe(address: str, environment: dict[str, str]) -> tuple[Outcome, str]:
    # -P: modules in the script's folder aren't top-level modules.
    command = [sys.executable, "-P", ray_probe.__file__, address]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_PROBE_S, check=True
        )
        outcome, told = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
        raise RayUnavailable(f"checking whether Ray answers failed: {error}") from error
    return Outcome(outcome), str(told)
