"""The question before a command destroys something."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from velaray.cli.common import Command


def destroys(what: str, only_with: str | None = None) -> Callable[[Command], Command]:
    """Give a command the option --yes. Without it, the command first asks in a terminal, and is
    refused elsewhere.

    ``what`` says what the command would do, with names of its parameters in braces. With
    ``only_with`` the command destroys something only if this flag is given.
    """

    def decorate(command: Command) -> Command:
        @click.option("--yes", "-y", is_flag=True, help="Don't ask for confirmation.")
        @wraps(command)
        def run(*args: Any, yes: bool, **options: Any) -> Any:
            if not yes and (only_with is None or options[only_with]):
                _confirm(what.format_map(options))
            return command(*args, **options)

        return run

    return decorate


def _confirm(what: str) -> None:
    """Ask. Raises `click.Abort` for a no, `click.UsageError` if standard input is no terminal."""
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"this would {what}: give --yes, since standard input isn't a terminal"
        )
    click.confirm(f"This will {what}. Go on?", abort=True, err=True)
