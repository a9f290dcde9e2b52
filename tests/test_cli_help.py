"""The help of every command: whole sentences, and examples that the command accepts."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.support.samples import ROOT
from velaray.cli.app import main

FILES = ("token-key", "west.token", "order.avsc", "ca.pem")
DIRECTORIES = ("velaray-data", "checkpoints/orders")
"""What examples name and must exist when they are parsed."""


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command below a group by its whole name, groups too; without hidden ones."""
    yield " ".join(("velaray", *path)), group
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        elif not command.hidden:
            yield " ".join(("velaray", *path, name)), command


ALL = dict(commands(main))
SINGLE = sorted(name for name, each in ALL.items() if not isinstance(each, click.Group))
GROUPS = sorted(set(ALL) - set(SINGLE))


def examples(name: str) -> list[str]:
    """The examples in the help of a command."""
    _, _, rest = inspect.cleandoc(ALL[name].help or "").partition("\b\nExample")
    return [line.strip() for line in rest.splitlines()[1:]]


def parse(line: str) -> str:
    """Parse a command line without running it. Returns the name of the command that it calls."""
    words = shlex.split(re.sub(r" < \S+$", "", line))
    context = main.make_context("velaray", words[1:])
    while isinstance(context.command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, command, rest = context.command.resolve_command(context, rest)
        assert command is not None and name is not None
        context = command.make_context(name, rest, parent=context)
    return context.command_path


@pytest.mark.parametrize("name", SINGLE)
def test_a_command_has_examples_that_it_accepts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in FILES:
        Path(file).write_text("text", encoding="utf-8")
    for directory in DIRECTORIES:
        Path(directory).mkdir(parents=True)
    assert examples(name)
    for line in examples(name):
        assert parse(line) == name


@pytest.mark.parametrize("name", GROUPS)
def test_the_help_of_a_group_has_whole_sentences(name: str) -> None:
    result = CliRunner().invoke(main, [*name.split()[1:], "--help"])
    assert result.exit_code == 0 and "..." not in result.output.replace("]...", "")
    text = "".join(result.output.split())  # lines are wrapped within hyphenated words, too
    group = ALL[name]
    assert isinstance(group, click.Group)
    for command in group.commands.values():
        first = inspect.cleandoc(command.help or "").split("\n\n")[0]
        if not command.hidden:
            assert "".join(first.split(". ")[0].split()).rstrip(".") in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_are_completed(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(instruction: str) -> str:
        monkeypatch.setenv("_VELARAY_COMPLETE", instruction)
        with pytest.raises(SystemExit):
            main(prog_name="velaray")
        return capsys.readouterr().out

    page = (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
    assert f"_VELARAY_COMPLETE={shell}_source velaray" in page
    assert "velaray" in asked(f"{shell}_source")
    monkeypatch.setenv("COMP_WORDS", "velaray topics pe")
    monkeypatch.setenv("COMP_CWORD", "pe" if shell == "fish" else "2")
    assert "peek" in asked(f"{shell}_complete")


def test_the_page_lists_the_commands_that_ask() -> None:
    page = (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
    _, _, section = page.partition("## Confirmation")
    listed = "".join(line for line in section.splitlines() if line.startswith("- "))
    asking = {
        name.removeprefix("velaray ")
        for name in SINGLE
        if any("--yes" in each.opts for each in ALL[name].params)
    }
    assert {"erase", "topics delete"} < asking
    assert set(re.findall(r"`([a-z -]+)`", listed)) == asking


def test_start_reports_as_json(tmp_path: Path) -> None:
    page = (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
    command = "start --local -o json"
    assert f"\nvelaray {command}\n" in page
    code = "from velaray.cli.app import main; main(prog_name='velaray')"
    ports = "--service-port", "0", "--admin-port", "0"
    with subprocess.Popen(
        [sys.executable, "-c", code, *command.split(), *ports, "--data", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stdout is not None
        found = json.loads(started.stdout.readline())
        assert found["state"] == "running"
        assert found["service"][0].startswith("pulsar://")
        assert found["console"] == f"{found['admin'][0]}/"
        started.terminate()
        states = [json.loads(line)["state"] for line in started.stdout]
    assert states == ["stopping", "stopped"] and started.returncode == 0
