"""Generate docs/reference/configuration.md from the model of the settings.

Run as ``python -m tools.generate_configuration [--check]``. ``--check`` writes nothing, and
fails if the page is out of date.
"""

from pathlib import Path

from tools import generated_page
from velaray.settings import GROUPS, SETTINGS, about, allowed, default_text, option_of
from velaray.settings_sources import variable_of

PAGE = "docs/reference/configuration.md"

_HEAD = """# Settings of a cluster

<!-- Generated from velaray/settings.py by `make references`. -->

Each setting of `velaray start` comes from the first of these sources that gives it:

1. an option of the command line,
2. an environment variable,
3. a key of `velaray.toml` in the working directory, or of the file that `--config FILE` names,
4. its default.

`velaray config show` takes the same options as `velaray start` and prints every setting with its
value and source. Unknown keys of the file and unknown variables that start with `VELARAY_` are
refused. `VELARAY_ADMIN_URL`, `VELARAY_SERVICE_URL` and `VELARAY_TOKEN` are for the other commands.
Secrets are given as paths of files. Relative paths begin at the working directory. Settings take
effect with the next start.

<!-- run by tests/test_settings.py -->
```toml
# velaray.toml
data = "/srv/velaray"
name = "north"
passivate_after_s = 60

[listeners]
public = "pulsar://pulsar.example.com:6650"
```

In a variable, several values are separated by spaces:
`VELARAY_LISTENERS="a=pulsar://a:6650 b=pulsar://b:6650"`. With `local`, the settings `ray_address`,
`placement` and `hosts` are refused.

`velaray.Cluster.start(data_dir, **options)` and `velaray.LocalCluster.start` take the keys as
arguments, and read no file and no variable. `data` is their first argument. Instead of the two
token keys they take `auth=AuthSettings(secret=...)` or `auth=AuthSettings(public_key=...)`;
`replication_secret` may also be the key itself."""


def page() -> str:
    """The text of the page."""
    parts = [_HEAD]
    for group in GROUPS:
        parts.append(f"## {group}")
        parts += [_section(key) for key in SETTINGS if about(key).group == group]
    return "\n\n".join(parts) + "\n"


def _section(key: str) -> str:
    found = about(key)
    unit = f", in {found.unit}" if found.unit else ""
    rows = {
        "Option, variable": f"`{option_of(key)}`, `{variable_of(key)}`",
        "Allowed": f"{allowed(key)}{unit}",
        "Default": default_text(key),
    }
    lines = [f"- {name}: {text}" for name, text in rows.items()]
    if found.fixed:
        lines.append("- It can't change once there is data.")
    return "\n".join([f"### `{key}`", "", found.text, "", *lines])


def out_of_date(root: Path) -> list[str]:
    """A fault if the page below ``root`` differs from the model."""
    return generated_page.out_of_date(root, PAGE, page(), "references")


if __name__ == "__main__":
    generated_page.run(PAGE, page(), "references")
