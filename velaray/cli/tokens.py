"""``velaray tokens``."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from velaray.cli.common import Group, Output, with_output
from velaray.topology.key_files import KeyFileError, read_secret

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_DAYS = 36_500


class Lifetime(click.ParamType):
    """A number of seconds, written with a unit: 45s, 90m, 12h or 30d."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The seconds. Fails for other forms, for 0, and for more than 100 years."""
        found = re.fullmatch(r"([1-9]\d{0,9})([smhd])", str(value), re.ASCII)
        seconds = int(found[1]) * _UNITS[found[2]] if found else 0
        if not 0 < seconds <= _LONGEST_DAYS * _UNITS["d"]:
            self.fail(f"{value!r}: write a number and s, m, h or d, such as 30d", param, ctx)
        return seconds


@click.group(cls=Group)
def tokens() -> None:
    """Create tokens for clients."""


@tokens.command()
@click.option(
    "--secret-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="File with the cluster's key (--token-secret of velaray start).",
)
@click.option("--subject", required=True, help="The client's role, which the token proves.")
@click.option(
    "--expires",
    type=Lifetime(),
    help="Time until the token expires, such as 45s, 90m, 12h or 30d.  [default: never]",
)
@with_output
def create(show: Output, secret_file: Path, subject: str, expires: int | None) -> None:
    """Print a token.

    A connection ends soon after its token has expired, unless its client presents a fresh one.

    \b
    Example:
      velaray tokens create --secret-file token-key --subject app --expires 30d
    """
    try:
        secret = read_secret(secret_file)
    except KeyFileError as error:
        raise click.ClickException(str(error)) from error
    import jwt  # imports a large library

    claims: dict[str, Any] = {"sub": subject}
    facts = {"subject": subject, "expires": None}
    if expires is not None:
        claims["exp"] = int(time.time()) + expires
        facts["expires"] = datetime.fromtimestamp(claims["exp"], UTC).isoformat()
    token = jwt.encode(claims, secret, algorithm="HS256")
    show.done(token, token=token, **facts)
