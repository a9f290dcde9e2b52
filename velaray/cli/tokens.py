"""``velaray tokens``."""

from __future__ import annotations

from pathlib import Path

import click

from velaray.key_files import KeyFileError, read_secret


@click.group()
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
def create(secret_file: Path, subject: str) -> None:
    """Print a token that never expires."""
    try:
        secret = read_secret(secret_file)
    except KeyFileError as error:
        raise click.ClickException(str(error)) from error
    import jwt  # imports a large library

    click.echo(jwt.encode({"sub": subject}, secret, algorithm="HS256"))
