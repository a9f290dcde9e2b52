"""Shared parts of the commands: connection options, output, exit codes."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from click.core import ParameterSource
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from velaray.cli import context_file
from velaray.client.admin import DEFAULT_URL, Admin
from velaray.client.admin.connection import AdminConnection
from velaray.client.admin.transports import Answer, BlockingTransport, Sending
from velaray.client.auth import Authentication, AuthenticationTLS, AuthenticationToken
from velaray.client.exceptions import ConsumerBusy, VelarayError
from velaray.client.tls import Security, TlsOptions
from velaray.events.ids import InvalidNameError
from velaray.journal.errors import JournalError
from velaray.topology.encryption_keys import VARIABLE
from velaray.topology.progress import Progress
from velaray.topology.stores import is_object_store

_TLS = "velaray.tls"
"""Where the context of a command has the options of TLS."""
USER_AGENT = "velaray-cli"
"""The client that the audit log names."""
_ANSWER_S = 30.0
_LEAST_ANSWER_S = 5.0
"""The minimum time limit of the cluster's answers, whatever a command's limit for messages is."""


class JournalsPlace(click.ParamType):
    """The place of a cluster's journals: an existing directory, or the URL of an object store."""

    name = "directory or url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The place as text. Fails if it is a directory that doesn't exist."""
        if is_object_store(str(value)):
            return str(value)
        directory = click.Path(exists=True, file_okay=False)
        return str(directory.convert(value, param, ctx))


def _use_keys(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Set the variable for this command: everything that opens stores reads it."""
    if value is not None:
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = value
        ctx.call_on_close(partial(_restore_keys, before))


def _restore_keys(before: str | None) -> None:
    if before is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = before


with_keys = click.option(
    "--encryption-keys",
    metavar="DIRECTORY",
    expose_value=False,
    callback=_use_keys,
    help=f"Directory of the keys of encrypted journals, or module:Class.  [default: {VARIABLE}]",
)


class Group(click.Group):
    """A group of commands. Its help has the first sentence of each command, whole."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands; long lines are wrapped, not cut."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rows = [
            (name, command.get_short_help_str(sys.maxsize))
            for name, command in commands.items()
            if command is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write where the examples are."""
        formatter.write_paragraph()
        formatter.write_text(f"Each command's help has an example: {ctx.command_path} COMMAND -h")


class Commands(Group):
    """The top group: an error becomes a line on stderr and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and report its errors."""
        try:
            return super().invoke(ctx)
        except InvalidNameError as error:
            raise click.UsageError(str(error)) from error
        except BrokenPipeError:
            raise  # click exits without a message then
        except ConsumerBusy as error:
            remedy = "close it, or give all consumers --type shared or failover"
            raise click.ClickException(f"{error}: {remedy}") from error
        except (VelarayError, JournalError, OSError) as error:
            raise click.ClickException(str(error)) from error


@dataclass(frozen=True, slots=True)
class Output:
    """Prints results as a table or as JSON."""

    as_json: bool

    def rows(self, columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> None:
        """Print one line for each of ``rows``; ``columns`` maps fields to titles."""
        if self.as_json:
            self.value([{field: row[field] for field in columns} for row in rows])
            return
        console = Console(file=sys.stdout)
        if console.is_terminal:
            console.print(table_of(columns, rows))
            return
        lines = [[_shown(row[field]).replace("\n", "\\n") for field in columns] for row in rows]
        _print_plain([list(columns.values()), *lines], _are_numbers(columns, rows))

    def value(self, value: Any) -> None:
        """Print ``value`` as JSON in every output format: it has no table form."""
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))

    def done(self, said: str, **facts: Any) -> None:
        """Report an action: ``said`` in a table's place, ``facts`` as JSON."""
        click.echo(json.dumps(facts, ensure_ascii=False) if self.as_json else said)


def time_text(at_ms: int) -> str:
    """Milliseconds since 1970 as date and time in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def table_of(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """The table for a terminal; ``columns`` maps fields to titles."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title, numbers in zip(columns.values(), _are_numbers(columns, rows), strict=True):
        table.add_column(title, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_shown(row[field])) for field in columns))
    return table


def _are_numbers(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Whether each column has numbers only."""
    return [bool(rows) and all(isinstance(row[name], int) for row in rows) for name in columns]


def as_text_or_base64(data: bytes) -> dict[str, str]:
    """The content of a message as a field of a JSON object: ``data``, or ``dataBase64`` if it is no
    text."""
    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        return {"dataBase64": base64.b64encode(data).decode()}


def _print_plain(lines: list[list[str]], right: list[bool]) -> None:
    """Print aligned columns for a pipe or a file: rich takes 200 us for each line of a table."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.rjust(width) if numbers else cell.ljust(width)
            for cell, width, numbers in zip(line, widths, right, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return str(value)


Command = Callable[..., Any]

_output = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Output format.",
)
TokenSource = Callable[[], str]
"""Returns a token, which may be another one at each call."""


@cache
def _oauth2(path: str) -> Authentication:
    """The credentials of the parameters in a file, which keep their token."""
    from velaray.client.oauth2 import AuthenticationOauth2  # needed by few commands

    return AuthenticationOauth2(Path(path).read_text(encoding="utf-8"))


def _read_token(given: str) -> str:
    kind, _, rest = given.partition(":")
    if kind == "file":
        return Path(rest.removeprefix("//")).read_text(encoding="utf-8").strip()
    if kind == "env":
        return os.environ.get(rest, "")
    if kind == "oauth2":
        return _oauth2(rest.removeprefix("//")).data().decode()
    return given.removeprefix("token:")


def _token_source(
    ctx: click.Context, param: click.Parameter, given: str | None
) -> TokenSource | None:
    """The source of the token. A token itself is accepted only from the environment: other users
    see command lines in the list of processes."""
    if not given:
        return None
    if given == "-":
        return partial(str, sys.stdin.readline().strip())
    typed = ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    if typed and not given.startswith(("file:", "env:", "oauth2:")):
        raise click.BadParameter(
            "the list of processes would show the token: give file:PATH, env:NAME, oauth2:PATH, or "
            "- for a line of standard input; or set VELARAY_TOKEN",
            ctx,
            param,
        )
    return partial(_read_token, given)


_token = click.option(
    "--token",
    "token",
    envvar="VELARAY_TOKEN",
    show_envvar=True,
    metavar="SOURCE",
    callback=_token_source,
    help="Source of the JSON web token, if the cluster requires one: file:PATH, env:NAME, - for a "
    "line of standard input, or oauth2:PATH for a provider whose parameters are in a file. "
    "VELARAY_TOKEN has such a source or the token itself.",
)


_timeout = click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    help=f"Seconds to wait for the cluster's answers.  [default: {_ANSWER_S:g}]",
)


def _with_tls(command: Command) -> Command:
    """Give ``command`` the options of TLS, which `given_tls` returns. They matter for URLs of TLS
    only."""

    @_file_option(
        "--trust-certs",
        "Certificates (PEM) of the authorities of the cluster's "
        "certificate.  [default: those of the system]",
    )
    @_file_option("--client-cert", "Certificate (PEM) of yours, if the cluster asks for one.")
    @_file_option("--client-key", "Unencrypted key (PEM) of --client-cert.")
    @wraps(command)
    def run(
        *args: Any,
        trust_certs: str | None,
        client_cert: str | None,
        client_key: str | None,
        **options: Any,
    ) -> Any:
        tls = TlsOptions(
            trust_certs, certificate_file_path=client_cert, private_key_file_path=client_key
        )
        click.get_current_context().meta[_TLS] = tls
        return command(*args, **options)

    return run


def given_tls() -> TlsOptions:
    """The options of TLS of the command that runs."""
    found: TlsOptions = click.get_current_context().meta[_TLS]
    return found


def _file_option(name: str, text: str) -> Callable[[Command], Command]:
    variable = f"VELARAY_{name.removeprefix('--').replace('-', '_').upper()}"
    kind = click.Path(exists=True, dir_okay=False)
    return click.option(name, type=kind, envvar=variable, show_envvar=True, help=text)


@dataclass(frozen=True, slots=True)
class _Kind:
    """One of the two URLs of a cluster, as commands and contexts name it."""

    field: str
    option: str
    default: str
    text: str

    def give(self, command: Command) -> Command:
        """Give ``command`` the option of this URL."""
        return click.option(
            self.option,
            envvar=f"VELARAY_{self.field.upper()}",
            show_envvar=True,
            help=f"{self.text}  [default: the active context's, or else {self.default}]",
        )(command)


SERVICE = _Kind("service_url", "--service-url", "pulsar://127.0.0.1:6650", "URL of the service.")
ADMIN = _Kind("admin_url", "--admin-url", DEFAULT_URL, "URL of the admin interface.")


def connection(
    kind: _Kind, url: str | None, token: TokenSource | None
) -> tuple[str, TokenSource | None]:
    """The URL and the token of a command, and in `given_tls` the options of TLS.

    Options and variables precede the active context. If one of them gives the URL, nothing of the
    context is used: its token isn't sent to another cluster. Raises `click.ClickException` if the
    context has no such URL.
    """
    active = None if url else context_file.active()
    if active is None:
        return url or kind.default, token
    name, context = active
    found: str | None = getattr(context, kind.field)
    if found is None:
        raise click.ClickException(f"the context {name} has no URL for this: give {kind.option}")
    tls = given_tls()
    certificate = tls.certificate_file_path, tls.private_key_file_path
    if certificate == (None, None):
        certificate = context.client_cert, context.client_key
    click.get_current_context().meta[_TLS] = TlsOptions(
        tls.trust_certs_file_path or context.trust_certs,
        certificate_file_path=certificate[0],
        private_key_file_path=certificate[1],
    )
    if token is None and context.token is not None:
        token = partial(_read_token, context.token)
    return found, token


def client_options(token: str | TokenSource | None) -> dict[str, Any]:
    """The options of a client: the credentials, which are the token or else the certificate, and
    those of TLS."""
    tls = given_tls()
    proof: Authentication | None = AuthenticationToken(token) if token else None
    if proof is None and tls.certificate_file_path and tls.private_key_file_path:
        proof = AuthenticationTLS(tls.certificate_file_path, tls.private_key_file_path)
    return {"authentication": proof, **tls.arguments()}


class _PatientTransport(BlockingTransport):
    async def send(self, sending: Sending) -> Answer:
        where = urlsplit(sending.url)
        with Progress(f"waiting for {where.scheme}://{where.netloc}"):
            return await super().send(sending)


class _PatientAdmin(Admin):
    """An `Admin` that prints on standard error what it waits for."""

    def _new_transport(self, timeout_s: float, tls: Security | None) -> BlockingTransport:
        return _PatientTransport(timeout_s, tls)


def with_output(command: Command) -> Command:
    """Give ``command`` the option -o and an `Output` as its first argument."""

    @_output
    @wraps(command)
    def run(*args: Any, output: str, **options: Any) -> Any:
        return command(Output(output == "json"), *args, **options)

    return run


def with_admin(command: Command) -> Command:
    """Give ``command`` the options of the admin interface, an `Output` and an `Admin`."""

    @ADMIN.give
    @_token
    @_with_tls
    @with_output
    @wraps(command)
    def run(
        show: Output,
        *args: Any,
        admin_url: str | None,
        token: TokenSource | None,
        **options: Any,
    ) -> Any:
        admin_url, token = connection(ADMIN, admin_url, token)
        try:
            given = None if token is None else token()
            admin = _PatientAdmin(
                admin_url, token=given, client_version=USER_AGENT, tls=given_tls()
            )
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        return command(show, admin, *args, **options)

    return run


def with_service(command: Command) -> Command:
    """Give ``command`` the options of the service, an `Output` and a connected client."""

    @wraps(command)
    def run(*args: Any, timeout: float | None, **options: Any) -> Any:
        return command(*args, **options)

    return _timeout(with_service_and_timeout(run, 0.0))


def with_service_and_timeout(command: Command, least_s: float = _LEAST_ANSWER_S) -> Command:
    """`with_service` for a command that has an option ``timeout`` of its own.

    The time limit of the cluster's answers is that timeout, but at least ``least_s`` seconds.
    """

    @SERVICE.give
    @_token
    @_with_tls
    @with_output
    @wraps(command)
    def run(
        show: Output,
        *args: Any,
        service_url: str | None,
        token: TokenSource | None,
        timeout: float | None,
        **options: Any,
    ) -> Any:
        service_url, token = connection(SERVICE, service_url, token)
        # Most commands don't need the client's modules, which load slowly.
        from velaray.sync.client import Client

        with Client(
            service_url,
            operation_timeout_seconds=max(timeout or _ANSWER_S, least_s),
            **client_options(token),
        ) as client:
            return command(show, client, *args, timeout=timeout, **options)

    return run


@dataclass(frozen=True, slots=True)
class Addresses:
    """Both URLs of a cluster, for a command that makes its own clients."""

    service_url: str
    client_options: Mapping[str, Any]
    """The credentials and TLS of `velaray.aio.Client`."""
    admin: AdminConnection | str
    """The admin interface; or why it isn't asked."""


def with_addresses(command: Command) -> Command:
    """Give ``command`` the options of the service and of the admin interface, an `Output` and
    `Addresses`.

    If only the URL of the service is given, the admin interface isn't asked: that of the context
    or the default belongs to another cluster.
    """

    @SERVICE.give
    @ADMIN.give
    @_token
    @_with_tls
    @with_output
    @wraps(command)
    def run(
        show: Output,
        *args: Any,
        service_url: str | None,
        admin_url: str | None,
        token: TokenSource | None,
        **options: Any,
    ) -> Any:
        found, service_token = connection(SERVICE, service_url, token)
        admin: AdminConnection | str = "give --admin-url"
        if admin_url or not service_url:
            try:
                admin = _admin_connection(*connection(ADMIN, admin_url, token))
            except ValueError as error:
                raise click.UsageError(str(error)) from error
        addresses = Addresses(found, client_options(service_token), admin)
        return command(show, addresses, *args, **options)

    return run


def _admin_connection(url: str, token: TokenSource | None) -> AdminConnection:
    transport = BlockingTransport(_LEAST_ANSWER_S, given_tls())
    return AdminConnection(url, transport, None if token is None else token(), USER_AGENT)
