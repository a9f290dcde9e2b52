"""Where the settings of a start come from: the command line, the environment, a file, defaults.

The command line precedes the environment, the environment the file, and the file the defaults. A
value replaces that of a later source as a whole: names of listeners aren't merged.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from velaray.settings import (
    SETTINGS,
    ClusterSettings,
    SettingError,
    about,
    as_text,
    nearest,
    option_of,
    validated,
)

FILE = Path("velaray.toml")
"""The file of settings in the working directory."""
PREFIX = "VELARAY_"
OTHER_VARIABLES = frozenset(
    {
        # Options of the other commands, which are clients.
        *("VELARAY_ADMIN_URL", "VELARAY_SERVICE_URL", "VELARAY_TOKEN"),
        *("VELARAY_TRUST_CERTS", "VELARAY_CLIENT_CERT", "VELARAY_CLIENT_KEY"),
        # The benchmark and the tests.
        *("VELARAY_BENCH_CACHE", "VELARAY_COMPILED", "VELARAY_KILL_SEEDS"),
    }
)
"""Variables with the prefix that aren't settings of a cluster."""
DEFAULT = "default"
_CODE = "Python"
_HIDDEN = "(hidden)"


@dataclass(frozen=True, slots=True)
class Given:
    """A value of one source. ``source`` names its place, ``label`` the place and the value."""

    value: Any
    source: str
    label: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings of a start, and by key where their values come from."""

    settings: ClusterSettings
    sources: Mapping[str, str]


def described(
    settings: ClusterSettings, sources: Mapping[str, str], *, in_memory: bool = False
) -> tuple[tuple[str, str, str], ...]:
    """The name, the value as text and the source of every setting.

    What ``sources`` doesn't have was given in Python, unless it is a default. A key that was given
    in Python is hidden; of others there is the path. The directory of the data is absolute;
    ``in_memory`` and with an object store there is none.
    """
    in_code = dict.fromkeys(settings.model_fields_set, _CODE)
    keys = {key for key in SETTINGS if isinstance(value := getattr(settings, key), bytes) and value}
    values = settings.model_dump(mode="json", include=set(SETTINGS) - keys)
    if in_memory or settings.store:
        values["data"] = "(memory)" if in_memory else ""
    else:
        values["data"] = settings.location
    return tuple(
        (key, as_text(values[key]) if key in values else _HIDDEN, source)
        for key, source in {**dict.fromkeys(SETTINGS, DEFAULT), **in_code, **sources}.items()
    )


def variable_of(key: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + key.upper()


def resolve(
    options: Mapping[str, Any], environment: Mapping[str, str], file: Path | None = None
) -> Resolved:
    """Combine the sources.

    ``options`` has the values of the command line by key, without those that aren't given.
    ``file`` is the file of settings; None: `FILE`, if it exists. Relative paths in all sources
    begin at the working directory.

    Raises `SettingError` for unknown keys and variables and for values that aren't allowed,
    `OSError` if the file can't be read.
    """
    if file is None and FILE.is_file():
        file = FILE
    given = {
        **({} if file is None else from_file(file)),
        **_from_environment(environment),
        **_from_options(options),
    }
    values = {key: _value(key, each.value) for key, each in given.items()}
    settings = validated(values, {key: each.label for key, each in given.items()})
    if settings.data.is_file():
        raise SettingError(f"{given['data'].label} must be a directory, not a file")
    return Resolved(
        settings, {key: given[key].source if key in given else DEFAULT for key in SETTINGS}
    )


def _value(key: str, value: Any) -> Any:
    """Sources give the path of a key, and only Python code the key itself."""
    return Path(value) if about(key).key_file and isinstance(value, str) else value


def from_file(file: Path) -> dict[str, Given]:
    """The values in a file. Raises `SettingError` for unknown keys and `OSError`."""
    text = file.read_text(encoding="utf-8")
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"{file}: {error}") from error
    given: dict[str, Given] = {}
    for key, value in found.items():
        place = f"{file}:{_line_of(key, text)}"
        if key not in SETTINGS:
            raise SettingError(f"{place}: unknown setting {key!r}{nearest(key, list(SETTINGS))}")
        given[key] = Given(value, place, f"{place}: {key} = {value!r}")
    return given


def _line_of(key: str, text: str) -> int:
    """The number of the first line with this key or table."""
    found = re.search(rf"""^\s*\[?\s*["']?{re.escape(key)}["']?\s*[]=.]""", text, re.MULTILINE)
    return 1 if found is None else text.count("\n", 0, found.end()) + 1


def _from_environment(environment: Mapping[str, str]) -> dict[str, Given]:
    """The values of environment variables. Raises `SettingError` for unknown ones."""
    keys = {variable_of(key): key for key in SETTINGS}
    given: dict[str, Given] = {}
    for name in sorted(environment):
        if name in keys:
            value = environment[name]
            given[keys[name]] = Given(value, name, f"{name}={value!r}")
        elif name.startswith(PREFIX) and name not in OTHER_VARIABLES:
            suggestion = nearest(name, [*keys, *OTHER_VARIABLES])
            raise SettingError(f"unknown environment variable {name}{suggestion}")
    return given


def _from_options(options: Mapping[str, Any]) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for key, value in options.items():
        option = option_of(key)
        if isinstance(value, bool):
            option = option if value else option.replace("--", "--no-", 1)
            given[key] = Given(value, option, option)
        else:
            shown = " ".join(value) if isinstance(value, tuple) else str(value)
            given[key] = Given(value, option, f"{option} {shown}")
    return given
