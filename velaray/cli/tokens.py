"""``velaray tokens``."""

from __future__ import annotations

from pathlib import Path

import click

# The strength of HS256 is that of its key; a short key can be guessed from a single token.
_LEAST_BYTES = 32


def read_secret(path: Path) -> bytes:
    """The key in ``path``: all of its bytes, as in Pulsar's key files. Raises for a weak one."""
    secret = path.read_bytes()
    if len(secret) < _LEAST_BYTES:
        raise click.ClickException(
            f"{path} holds {len(secret)} bytes; a key needs at least {_LEAST_BYTES}: make one "
            f"with `openssl rand -out {path} {_LEAST_BYTES}`"
        )
    return secret


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
    secret = read_secret(secret_file)
    import jwt  # imports a large library

    click.echo(jwt.encode({"sub": subject}, secret, algorithm="HS256"))
