"""The settings of a cluster: one model, four sources, options, arguments and reference."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints
from urllib.request import urlopen

import click
import pytest
from click.testing import CliRunner, Result

from tests.support.certificates import Authority
from tests.support.samples import samples
from tests.tidy_rules import walk
from velaray.cli.app import main, start
from velaray.cli.settings import SettingsCommand, setting_options
from velaray.cli.settings import show as config_show
from velaray.local import LocalCluster
from velaray.settings import (
    SETTINGS,
    ClusterSettings,
    SettingError,
    about,
    option_of,
    settings_of,
    type_of,
)
from velaray.settings_sources import OTHER_VARIABLES, PREFIX, described, resolve, variable_of
from velaray.starting import ClusterOptions, RayOptions
from velaray.topology.config import AuthSettings, ClusterConfig

ROOT = Path(__file__).resolve().parents[1]

VALUES: Mapping[str, tuple[str, str, str]] = {
    "data": ("a", "b", "c"),
    "store": ("s3://a/b", "gs://a/b", "az://a/b"),
    "name": ("a", "b", "c"),
    "cluster_number": ("1", "2", "3"),
    "host": ("::1", "localhost", "127.0.0.2"),
    "service_port": ("1", "2", "3"),
    "admin_port": ("1", "2", "3"),
    "advertise": ("a", "10.0.0.1=b", "c"),
    "tunnel": ("true", "false", "true"),
    "listeners": ("a=pulsar://a:1", "b=pulsar://b:2,c:3 d=pulsar://d:4", "c=pulsar://c:1"),
    "port_range": ("1-2", "2-3", "3-4"),
    "max_connections": ("1", "2", "3"),
    "max_connections_per_address": ("1", "2", "3"),
    "max_connections_per_role": ("1", "2", "3"),
    "max_requests_per_role": ("1", "2", "3"),
    "memory_budget_mib": ("0", "1000", "2000"),
    "buffer_memory_mib": ("16", "32", "64"),
    "ray_address": ("a:1", "b:2", "c:3"),
    "ray_tls": ("a", "b", "c"),
    "placement": ("shared", "auto", "dedicated"),
    "hosts": ("1", "2", "3"),
    "local": ("true", "false", "true"),
    "passivate_after_s": ("1", "2.5", "3"),
    "log_format": ("json", "console", "json"),
    "otlp_endpoint": ("http://a:1", "https://b", "http://c"),
    "otlp_interval_s": ("1", "2.5", "3"),
    "log_level": ("debug", "error", "warning"),
    "max_active_transactions": ("1", "2", "3"),
    "partition_sync": ("interval", "always", "interval"),
    "sync_interval_ms": ("1", "2", "3"),
    "commit_interval_ms": ("50", "100", "250"),
    "compaction_retain_null_key": ("true", "false", "true"),
    "undelete_s": ("1", "2", "3"),
    "deletion_retry_s": ("1", "2", "3"),
    "deleters": ("1", "2", "3"),
    "offload": ("file:///a", "s3://a/b", "gs://c"),
    "encryption_keys": ("a", "/b", "c.d:E"),
    "encryption_required": ("true", "false", "true"),
    "token_secret": ("a.key", "b.key", "c.key"),
    "token_public_key": ("a.key", "b.key", "c.key"),
    "oidc_issuer": ("https://a", "https://b", "http://127.0.0.1:1"),
    "oidc_audience": ("a", "b", "c"),
    "oidc_role_claim": ("a", "b", "c"),
    "oidc_jwks_url": ("https://a", "https://b", "http://127.0.0.1:1"),
    "authorisation": ("true", "false", "true"),
    "superusers": ("a", "b c", "c d"),
    "proxy_roles": ("a", "b c", "c d"),
    "viewers": ("a", "b c", "c d"),
    "anonymous_role": ("a", "b", "c"),
    "audit_days": ("1", "2", "3"),
    "audit_size_mib": ("1", "2", "3"),
    "replication_secret": ("a.key", "b.key", "c.key"),
    "tls_cert": ("a.key", "b.key", "c.key"),
    "tls_key": ("a.key", "b.key", "c.key"),
    "tls_ca": ("a.key", "b.key", "c.key"),
    "tls_client_auth": ("required", "optional", "required"),
    "tls_min_version": ("1.3", "1.2", "1.3"),
    "tls_only": ("true", "false", "true"),
    "tls_service_port": ("1", "2", "3"),
    "tls_admin_port": ("1", "2", "3"),
}
"""For each setting a value of the file, of the environment and of the command line."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with three keys."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.key", "b.key", "c.key"):
        Path(name).write_text("a hidden secret of 32 bytes.....")
    return tmp_path


def run(*arguments: str, code: int = 0, **environment: str) -> Result:
    result = CliRunner(env=environment).invoke(main, arguments)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def shown(*arguments: str, **environment: str) -> dict[str, tuple[Any, str]]:
    """What `velaray config show` says: value and source by key."""
    rows = json.loads(run("config", "show", "-o", "json", *arguments, **environment).stdout)
    return {row["setting"]: (row["value"], row["source"]) for row in rows}


def on_command_line(key: str, text: str) -> list[str]:
    option = option_of(key)
    if type_of(key) is bool:
        return [option if text == "true" else option.replace("--", "--no-", 1)]
    return [part for each in text.split() for part in (option, each)]


_CERT, _KEY, _CA = ({f"VELARAY_TLS_{name}": "a.key"} for name in ("CERT", "KEY", "CA"))
NEEDED = {
    "commit_interval_ms": {"VELARAY_STORE": "s3://a/b"},
    "tls_cert": _KEY,
    "tls_key": _CERT,
    "tls_ca": _CERT | _KEY,
    "tls_client_auth": _CERT | _KEY | _CA,
    "tls_min_version": _CERT | _KEY,
    "tls_only": _CERT | _KEY,
    "oidc_issuer": {"VELARAY_OIDC_AUDIENCE": "a"},
    "oidc_audience": {"VELARAY_OIDC_ISSUER": "https://a"},
}
"""Variables without which a setting is refused."""


def value_of(key: str, text: str) -> Any:
    """The value for a text, as JSON shows it."""
    value = text.split() if about(key).several else text
    needed = NEEDED.get(key, {})
    found = resolve({key: Path(text) if about(key).key_file else value}, needed).settings
    return found.model_dump(mode="json")[key]


def test_every_setting_is_tried() -> None:
    assert VALUES.keys() == SETTINGS.keys()


@pytest.mark.parametrize("key", SETTINGS)
def test_the_command_line_precedes_the_environment_and_that_the_file(key: str) -> None:
    default = ClusterSettings().model_dump(mode="json")[key]
    in_file, in_environment, in_options = VALUES[key]
    options, needed = on_command_line(key, in_options), NEEDED.get(key, {})
    variable = {variable_of(key): in_environment, **needed}
    assert shown()[key] == (default, "default")
    assert shown(**variable)[key] == (value_of(key, in_environment), variable_of(key))
    quoted = in_file if in_file in ("true", "false") or in_file.isdigit() else f'"{in_file}"'
    Path("velaray.toml").write_text(f"# first line\n{key} = {quoted}\n")
    assert shown(**needed)[key] == (value_of_file(key, in_file), "velaray.toml:2")
    assert shown(**variable)[key] == (value_of(key, in_environment), variable_of(key))
    assert shown(*options, **variable)[key] == (value_of(key, in_options), options[0])


def value_of_file(key: str, text: str) -> Any:
    """`value_of`, without the file in the working directory."""
    file = Path("velaray.toml").rename("aside.toml")
    found = value_of(key, text)
    file.rename("velaray.toml")
    return found


def test_a_file_has_tables_lists_and_another_name_if_config_gives_it() -> None:
    Path("velaray.toml").write_text('name = "unread"\n')
    Path("other.toml").write_text(
        "port_range = [6700, 6799]\n\n[listeners]\npublic = 'pulsar://a:1'\n\n"
        "[advertise]\n'10.0.0.1' = 'a'\n"
    )
    found = shown("--config", "other.toml")
    assert found["name"] == ("standalone", "default")
    assert found["port_range"] == ([6700, 6799], "other.toml:1")
    assert found["listeners"] == ({"public": "pulsar://a:1"}, "other.toml:3")
    assert found["advertise"] == ({"10.0.0.1": "a"}, "other.toml:6")
    table = run("config", "show", "--config", "other.toml").stdout
    assert "6700-6799" in table
    assert "public=pulsar://a:1" in table


@pytest.mark.parametrize("command", [("start",), ("config", "show")])
@pytest.mark.parametrize(
    ("text", "environment", "complaint"),
    [
        ("\nservce_port = 1", {}, "velaray.toml:2: unknown setting 'servce_port'; did you mean "),
        ("undelete-window = 1", {}, "'undelete-window'; did you mean undelete_s?"),
        ("[listener]\na = 'b'", {}, "unknown setting 'listener'; did you mean listeners?"),
        ("xyzzy = 1", {}, "unknown setting 'xyzzy'; `velaray config show` lists the settings"),
        ("", {"VELARAY_DELETER": "1"}, "VELARAY_DELETER; did you mean VELARAY_DELETERS?"),
        ("deleters = 0", {}, "velaray.toml:1: deleters = 0 must be at least 1"),
        ("deleters = true", {}, "deleters = True must be an integer, at least 1"),
        ("name = 5", {}, "velaray.toml:1: name = 5 must be a name"),
        ("name = ", {}, "velaray.toml: Invalid value"),
        ("tunnel = 'x'", {}, "tunnel = 'x' must be true or false"),
        ("token_secret = 'none'", {}, "token_secret = 'none' must be an existing file"),
        ("", {"VELARAY_PARTITION_SYNC": "x"}, "C='x' must be always or interval"),
        ("", {"VELARAY_HOSTS": "many"}, "VELARAY_HOSTS='many' must be an integer, at least 1"),
        ("", {"VELARAY_PASSIVATE_AFTER_S": "inf"}, "S='inf' must be a number, above 0"),
        ("", {"VELARAY_LISTENERS": "a=b"}, "VELARAY_LISTENERS='a=b': listener 'a': write NAME="),
        ("", {"VELARAY_PORT_RANGE": "2-1"}, "VELARAY_PORT_RANGE='2-1': write FIRST-LAST"),
        ("local = true\nhosts = 2", {}, "velaray.toml:2: hosts = 2 is about Ray, which --local"),
        ("placement = 'dedicated'", {"VELARAY_HOSTS": "2"}, "HOSTS='2' needs placement shared"),
        ("tls_cert = 'a.key'", {}, "velaray.toml:1: tls_cert = 'a.key' needs tls_key"),
        ("tls_only = true", {}, "velaray.toml:1: tls_only = True needs tls_cert"),
        ("tls_client_auth = 'maybe'", {}, "'maybe' must be none or optional or required"),
        ("tls_client_auth = 'required'", _CERT | _KEY, "'required' needs tls_ca"),
        (
            "token_public_key = 'a.key'",
            {"VELARAY_TOKEN_SECRET": "b.key"},
            "VELARAY_TOKEN_SECRET='b.key' excludes token_public_key",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    command: tuple[str, ...], text: str, environment: dict[str, str], complaint: str
) -> None:
    Path("velaray.toml").write_text(text)
    assert complaint in run(*command, code=2, **environment).stderr
    assert not Path("velaray-data").exists()


def test_a_wrong_option_is_named() -> None:
    refused = run("start", "--service-port", "70000", code=2).stderr
    assert "--service-port 70000 must be 0 to 65535" in refused


def test_variables_of_other_programs_are_accepted_and_all_are_known() -> None:
    assert shown(**dict.fromkeys(OTHER_VARIABLES, "x"))["name"] == ("standalone", "default")
    known = {*map(variable_of, SETTINGS), *OTHER_VARIABLES}
    for path in walk(ROOT):
        if path.suffix == ".py" and path.name != Path(__file__).name:
            names = re.findall(rf"\b{PREFIX}[A-Z_]+\b", path.read_text(encoding="utf-8"))
            assert set(names) <= known, path


def test_secrets_are_never_shown() -> None:
    paths = [f"{option_of(key)}=a.key" for key in ("token_secret", "replication_secret")]
    for output in ("table", "json"):
        text = run("config", "show", "-o", output, *paths).output
        assert "a.key" in text
        assert "a hidden secret" not in text
    auth = AuthSettings(secret=b"a hidden secret")
    found = settings_of({"auth": auth, "replication_secret": b"a hidden secret"})
    assert "hidden" not in repr(found)
    with pytest.raises(SettingError) as refused:
        settings_of({"replication_secret": ["a hidden secret"]})
    assert "hidden" not in str(refused.value)


# -- options, arguments, reference -------------------------------------------------


@pytest.mark.parametrize("command", [start, config_show])
def test_the_options_are_the_settings(command: click.Command) -> None:
    assert isinstance(command, SettingsCommand)
    options = {each.name: each for each in command.get_params(click.Context(command))}
    own = {"--help", "--config", "--output"}
    settings = {each.name for each in options.values() if not own & {*each.opts}}
    assert settings == SETTINGS.keys()
    for key, option in setting_options().items():
        assert option_of(key) in option.opts
        assert option is options[key]
    text = run(*(("start",) if command is start else ("config", "show")), "--help").output
    assert all(option_of(key) in text for key in SETTINGS)


def test_the_arguments_of_start_are_the_settings() -> None:
    hints = get_type_hints(RayOptions)
    auth = {"token_secret", "token_public_key"}
    assert hints.keys() - {"auth"} == SETTINGS.keys() - auth - {"data", "local", "store"}
    ray = hints.keys() - get_type_hints(ClusterOptions).keys()
    assert ray == {"ray_address", "ray_tls", "placement", "hosts"}
    files = {"tls_cert", "tls_key", "tls_ca", "ray_tls"}
    assert {hints[key] for key in files} == {Path | None}
    assert hints["encryption_keys"] == str | Path
    several = {"auth", "advertise", "encryption_keys", "listeners", "replication_secret"}
    for key in hints.keys() - files - several:
        kind = type_of(key)
        if key in ("superusers", "proxy_roles", "viewers"):
            assert hints[key] == Sequence[str]
        elif key == "port_range":
            assert hints[key] == SETTINGS[key].annotation
        elif issubclass(kind, Enum):
            assert hints[key] is str
        else:
            assert hints[key] in (kind, kind | None)
            assert hints[key] == SETTINGS[key].annotation


def test_actors_have_the_same_defaults() -> None:
    settings = ClusterSettings()
    config = ClusterConfig("data", 0, b"")
    same = {each.name for each in fields(config)} & SETTINGS.keys() - {"hosts", "advertise"}
    assert len(same) > 10
    for name in same:
        assert getattr(config, name) == getattr(settings, name), name


def test_arguments_are_refused_with_a_suggestion(folder: Path) -> None:
    for given, suggestion in {"deleter": "deleters", "host_": "host", "auht": "auth"}.items():
        with pytest.raises(TypeError, match=rf"'{given}'; did you mean {suggestion}\?"):
            LocalCluster.start(folder / "data", **{given: 1})
    with pytest.raises(TypeError, match="unknown argument 'token_secret'"):
        settings_of({"token_secret": b"x"})
    with pytest.raises(SettingError, match="auth has neither"):
        settings_of({"auth": AuthSettings()})
    with pytest.raises(SettingError, match="token_secret excludes"):
        settings_of({"auth": AuthSettings(b"x", "y")})
    with pytest.raises(SettingError, match="hosts=2 is about Ray"):
        LocalCluster.start(folder / "data", hosts=2)
    assert not (folder / "data").exists()


def test_files_give_the_keys_of_a_cluster(folder: Path) -> None:
    given = {"token_secret": "a.key", "replication_secret": "b.key", "service_port": "0"}
    settings = resolve({**given, "admin_port": "0", "local": True}, {}).settings
    with LocalCluster.from_settings(settings) as cluster:
        assert cluster.config.auth == AuthSettings(secret_path=str(folder / "a.key"))
        assert cluster.config.replication_secret == Path("b.key").read_bytes()
        assert (folder / "velaray-data").is_dir()


def test_the_settings_of_a_start_are_described_with_their_sources_and_without_keys(
    folder: Path,
) -> None:
    found = resolve({"hosts": 3}, {"VELARAY_NAME": "east"})
    rows = {name: row for name, *row in described(found.settings, found.sources)}
    assert rows["hosts"] == ["3", "--hosts"]
    assert rows["name"] == ["east", "VELARAY_NAME"]
    assert rows["service_port"] == ["6650", "default"]
    assert rows.keys() == SETTINGS.keys()
    assert rows["data"] == [str(folder / "velaray-data"), "default"]
    secret = b"s" * 32
    in_code = settings_of({"replication_secret": secret, "auth": AuthSettings(secret)})
    rows = {name: row for name, *row in described(in_code, {})}
    assert rows["replication_secret"] == ["(hidden)", "Python"]
    assert rows["token_secret"] == ["(hidden)", "Python"]
    assert "sss" not in str(rows)


def test_a_cluster_in_an_object_store_has_no_directory(folder: Path) -> None:
    found = resolve({"store": "s3://bucket/prefix"}, {})
    rows = {name: row for name, *row in described(found.settings, found.sources)}
    assert rows["store"] == ["s3://bucket/prefix", "--store"]
    assert rows["data"] == ["-", "default"]


def test_a_running_cluster_shows_its_settings_with_their_sources() -> None:
    with LocalCluster.start(max_connections=777) as cluster:
        with urlopen(f"{cluster.admin_url}/admin/v2/velaray/settings") as answer:
            rows = {row["name"]: row for row in json.load(answer)}
        assert rows["max_connections"] == {
            "name": "max_connections",
            "value": "777",
            "source": "Python",
        }
        assert rows["replication_secret"]["value"] == "-"
        assert rows["data"]["value"] == "(memory)"
        with urlopen(f"{cluster.admin_url}/console/settings") as answer:
            assert "<td>max_connections</td><td><code>777</code>" in answer.read().decode()


def test_the_url_of_a_store_is_no_directory(folder: Path) -> None:
    refused = run("start", "--local", "--data", "s3://bucket/prefix", code=2)
    assert "is the URL of an object store: give it as store" in refused.stderr
    assert not (folder / "s3:").exists()


def test_tls_needs_a_certificate_with_its_key(folder: Path) -> None:
    pair = Authority(folder / "authority").issue()
    names = {"tls_cert": str(pair.cert), "tls_key": str(pair.key), "local": True}
    ports = dict.fromkeys(("service_port", "admin_port", "tls_service_port", "tls_admin_port"), "0")
    settings = resolve({**names, **ports, "tls_only": True}, {}).settings
    with LocalCluster.from_settings(settings) as cluster:
        assert cluster.service_url.startswith("pulsar+ssl://127.0.0.1:")
        assert cluster.admin_url.startswith("https://127.0.0.1:")
    refused = run("start", "--local", "--tls-cert", "a.key", "--tls-key", str(pair.key), code=1)
    assert "a.key holds no certificate in PEM form" in refused.stderr
    refused = run("start", "--local", "--tls-cert", str(pair.cert), "--tls-key", "a.key", code=1)
    assert "no certificate and its unencrypted key" in refused.stderr


def test_the_file_in_the_reference_is_accepted() -> None:
    (sample,) = samples("docs/reference/configuration.md")
    Path("velaray.toml").write_text(sample.code)
    found = shown()
    assert found["data"] == ("/srv/velaray", "velaray.toml:2")
    assert found["listeners"][0] == {"public": "pulsar://pulsar.example.com:6650"}


def test_other_commands_load_no_model() -> None:
    code = (
        "import sys, velaray.cli.app, velaray; velaray.ClusterError;"
        "print('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "False\n", done.stderr
