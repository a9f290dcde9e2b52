"""The contexts of the command line: named clusters, with their URLs and credentials.

They are in `contexts.json` of the user's configuration directory, which only the user can read. The
file has places of tokens and keys, not the tokens.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click
import msgspec


class Context(msgspec.Struct, frozen=True, omit_defaults=True):
    """A cluster as commands reach it. Paths are absolute; ``token`` is the source of a token."""

    service_url: str | None = None
    admin_url: str | None = None
    token: str | None = None
    trust_certs: str | None = None
    client_cert: str | None = None
    client_key: str | None = None


class Contexts(msgspec.Struct):
    """All contexts by name, and the name of the active one."""

    active: str | None = None
    known: dict[str, Context] = {}


def file() -> Path:
    """The place of the file: on Linux below XDG_CONFIG_HOME, which is ~/.config by default."""
    return Path(click.get_app_dir("velaray")) / "contexts.json"


def load() -> Contexts:
    """The contexts. Raises `click.ClickException` if the file can't be read."""
    try:
        return msgspec.json.decode(file().read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except (OSError, msgspec.MsgspecError) as error:
        raise click.ClickException(f"{file()} can't be read: {error}; mend or delete it") from error


def save(contexts: Contexts) -> None:
    """Replace the file in one step, with mode 0600. Raises `OSError`; the file stays then."""
    target = file()
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(contexts), indent=2)
    # A temporary file of this function has mode 0600.
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".contexts-")
    try:
        with os.fdopen(descriptor, "wb") as written:
            written.write(text + b"\n")
        Path(name).replace(target)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def active() -> tuple[str, Context] | None:
    """The active context with its name. Raises `click.ClickException` as `load` does."""
    found = load()
    if found.active is None:
        return None
    if found.active not in found.known:
        raise click.ClickException(f"{file()} has no context {found.active}, which it calls active")
    return found.active, found.known[found.active]
