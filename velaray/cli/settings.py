"""Options that follow from the settings of a cluster, and ``velaray config``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from velaray.cli.common import Group, Output, with_output

if TYPE_CHECKING:
    from velaray.settings_sources import Resolved

CONFIG = click.option(
    "--config",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with settings.  [default: velaray.toml, if it exists]",
)


class SettingsCommand(click.Command):
    """A command with an option for each setting.

    The options are made when they are needed: other commands don't load the settings' model.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The options of the command itself, then one for each setting."""
        return [*super().get_params(ctx), *setting_options().values()]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of the command itself, then the settings by group."""
        from velaray.settings import GROUPS, about

        own = [each.get_help_record(ctx) for each in super().get_params(ctx)]
        with formatter.section("Options"):
            formatter.write_dl([each for each in own if each is not None])
        for group in GROUPS:
            members = [
                option.get_help_record(ctx)
                for key, option in setting_options().items()
                if about(key).group == group
            ]
            with formatter.section(group):
                formatter.write_dl([each for each in members if each is not None])


@cache
def setting_options() -> Mapping[str, click.Option]:
    """The options by key of their setting. `velaray.settings` checks their values."""
    from velaray.settings import SETTINGS

    return {key: _option(key) for key in SETTINGS}


def _option(key: str) -> click.Option:
    from velaray.settings import about, option_of, type_of

    option = option_of(key)
    said = f"{_help(key)}  [{_default(key)}]"
    if type_of(key) is bool:
        names = f"{option}/{option.replace('--', '--no-', 1)}"
        return click.Option([names, key], default=None, help=said)
    return click.Option(
        [option, key],
        multiple=about(key).several,
        default=None,
        metavar=_metavar(key),
        help=said,
    )


def _help(key: str) -> str:
    from velaray.settings import about, limits

    found = about(key)
    fixed = " It can't change once there is data." if found.fixed else ""
    unit = f" In {found.unit}." if found.unit else ""
    bounds = f" Allowed: {limits(key)}." if limits(key) else ""
    return f"{found.text}{fixed}{unit}{bounds}"


def _default(key: str) -> str:
    from velaray.settings import default_text

    return f"default: {default_text(key)}"


def _metavar(key: str) -> str:
    from enum import Enum

    from velaray.settings import about, type_of

    found, kind = about(key), type_of(key)
    if issubclass(kind, Enum):
        return f"[{'|'.join(str(each.value) for each in kind)}]"
    return found.metavar or found.unit.upper() or "NUMBER"


def resolved(file: Path | None, options: Mapping[str, Any]) -> Resolved:
    """The settings of this command line, of the environment and of the file.

    Raises `click.UsageError` for what isn't a setting or isn't allowed.
    """
    from velaray.settings import SettingError
    from velaray.settings_sources import resolve

    given = {key: value for key, value in options.items() if value is not None and value != ()}
    try:
        return resolve(given, os.environ, file)
    except SettingError as error:
        raise click.UsageError(str(error)) from error


@click.group(cls=Group)
def config() -> None:
    """Look at the settings of a cluster."""


@config.command(cls=SettingsCommand)
@CONFIG
@with_output
def show(output: Output, file: Path | None, **options: Any) -> None:
    """Show every setting of `velaray start` with the same options, and where it comes from.

    \b
    Example:
      velaray config show --hosts 4
    """
    from velaray.settings import as_text

    found = resolved(file, options)
    values = found.settings.model_dump(mode="json")
    output.rows(
        {"setting": "SETTING", "value": "VALUE", "source": "SOURCE"},
        [
            {
                "setting": key,
                "value": values[key] if output.as_json else as_text(values[key]),
                "source": source,
            }
            for key, source in found.sources.items()
        ],
    )
