"""``velaray context``: named clusters, so that commands need no URLs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from velaray.cli import context_file
from velaray.cli.common import Command, Group, Output, with_output
from velaray.cli.context_file import Context

_COLUMNS = {
    "context": "CONTEXT",
    "active": "ACTIVE",
    "service_url": "SERVICE",
    "admin_url": "ADMIN",
    "token": "TOKEN",
    "trust_certs": "TRUSTED",
    "client_cert": "CERTIFICATE",
}


class _Url(click.ParamType):
    """A URL with one of these schemes and a host."""

    name = "url"

    def __init__(self, *schemes: str) -> None:
        self._schemes = schemes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The URL. Fails for other schemes."""
        found = urlsplit(str(value))
        if found.scheme not in self._schemes or not found.hostname:
            allowed = " or ".join(f"{scheme}://host:port" for scheme in self._schemes)
            self.fail(f"{value!r} is not like {allowed}", param, ctx)
        return str(value)


class _TokenPlace(click.ParamType):
    """The place of a token: file:PATH, env:NAME or oauth2:PATH. A token itself isn't stored."""

    name = "source"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The place, with an absolute path. Fails for a file that doesn't exist."""
        kind, _, rest = str(value).partition(":")
        if kind == "env" and rest:
            return str(value)
        if kind not in ("file", "oauth2"):
            places = "file:PATH, env:NAME or oauth2:PATH"
            self.fail(f"a context has the place of a token: {places}", param, ctx)
        path = Path(rest.removeprefix("//")).absolute()
        if not path.is_file():
            self.fail(f"{path} is no file", param, ctx)
        return f"{kind}:{path}"


def _file_option(name: str, text: str) -> Callable[[Command], Command]:
    kind = click.Path(exists=True, dir_okay=False, path_type=Path)
    return click.option(name, type=kind, help=text)


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())


@click.group(cls=Group)
def context() -> None:
    """Name clusters, and choose the one that commands use.

    An option or a variable of a command precedes the active context. If one of them gives the URL,
    the command uses nothing of the context: its token isn't sent to another cluster.
    """


@context.command("add")
@click.argument("name")
@click.option("--service-url", type=_Url("pulsar", "pulsar+ssl"), help="URL of the service.")
@click.option("--admin-url", type=_Url("http", "https"), help="URL of the admin interface.")
@click.option(
    "--token", type=_TokenPlace(), help="Place of the token: file:PATH, env:NAME or oauth2:PATH."
)
@_file_option("--trust-certs", "Certificates (PEM) of the authorities of its certificate.")
@_file_option("--client-cert", "Certificate (PEM) of yours.")
@_file_option("--client-key", "Unencrypted key (PEM) of --client-cert.")
@with_output
def add(
    show: Output,
    name: str,
    service_url: str | None,
    admin_url: str | None,
    token: str | None,
    trust_certs: Path | None,
    client_cert: Path | None,
    client_key: Path | None,
) -> None:
    """Add the context NAME. It must be new.

    \b
    Examples:
      velaray context add here --admin-url http://127.0.0.1:8080
      velaray context add west --service-url pulsar+ssl://west:6651 --token file:west.token
    """
    if service_url is None and admin_url is None:
        raise click.UsageError("give --service-url, --admin-url or both")
    if (client_cert is None) != (client_key is None):
        raise click.UsageError("give both --client-cert and --client-key, or neither")
    found = context_file.load()
    if name in found.known:
        raise click.ClickException(
            f"the context {name} exists; remove it first: velaray context remove {name}"
        )
    files = map(_absolute, (trust_certs, client_cert, client_key))
    found.known[name] = Context(service_url, admin_url, token, *files)
    context_file.save(found)
    show.done(f"added {name}; to use it: velaray context use {name}", added=name)


@context.command("use")
@click.argument("name", required=False)
@click.option("--none", "nothing", is_flag=True, help="Make no context active.")
@with_output
def use(show: Output, name: str | None, nothing: bool) -> None:
    """Make the context NAME the active one.

    \b
    Examples:
      velaray context use west
      velaray context use --none
    """
    if (name is None) != nothing:
        raise click.UsageError("give the name of a context, or --none")
    found = context_file.load()
    if name is not None:
        _require(found, name)
    found.active = name
    context_file.save(found)
    show.done(f"{name or 'no context'} is active", active=name)


@context.command("list")
@with_output
def list_contexts(show: Output) -> None:
    """List the contexts.

    \b
    Example:
      velaray context list
    """
    found = context_file.load()
    rows = [
        {
            "context": name,
            "active": name == found.active,
            **{field: getattr(each, field) for field in each.__struct_fields__},
        }
        for name, each in sorted(found.known.items())
    ]
    show.rows(_COLUMNS, rows)


@context.command("remove")
@click.argument("name")
@with_output
def remove(show: Output, name: str) -> None:
    """Remove the context NAME. If it is active, none is active afterwards.

    \b
    Example:
      velaray context remove west
    """
    found = context_file.load()
    _require(found, name)
    del found.known[name]
    if found.active == name:
        found.active = None
    context_file.save(found)
    show.done(f"removed {name}", removed=name)


def _require(contexts: context_file.Contexts, name: str) -> None:
    if name not in contexts.known:
        known = ", ".join(sorted(contexts.known)) or "none"
        raise click.ClickException(f"there is no context {name}; there are: {known}")
