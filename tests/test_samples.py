"""Every code sample of the documents is run, checked, or excused with a reason.

Python blocks run page by page on a cluster in this process. The lines of shell blocks are parsed by
the command line that they call, which finds commands and options that don't exist.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from tests.support.local_cluster import LocalCluster
from tests.support.samples import DOCUMENTED_URL, ROOT, Sample, pages, parse, samples
from velaray import Client
from velaray.cli.app import main

SHELL = {"sh", "console"}
NO_CODE = {"mermaid", "diff", "text"}
FOREIGN = ("pip install", "export ", "ray start ", "python examples/", "(umask")
SAID = re.compile(r"print\(.*\)  # (.+)$", flags=re.MULTILINE)
"""What a sample says that it prints; an explanation may follow after a colon."""
RUN_HERE = sorted(
    page
    for page in pages()
    if any(s.language == "python" and not (s.test or s.excuse) for s in samples(page))
)


def prepare_transaction(client: Client) -> dict[str, Any]:
    """The names that the README's transaction uses."""
    consumer = client.subscribe("in", "s")
    producer = client.create_producer("out")
    client.create_producer("in").send(b"message")
    return {"client": client, "consumer": consumer, "producer": producer}


PREPARED = {("README.md", "client.transaction()"): prepare_transaction}


@pytest.mark.parametrize("page", RUN_HERE)
def test_python_samples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Dataclasses look for the module that they're defined in.
    printed: list[str] = []
    names: dict[str, Any] = {
        "__name__": __name__,
        "print": lambda *values: printed.append(" ".join(map(str, values))),
    }
    monkeypatch.chdir(tmp_path)
    with LocalCluster(tmp_path / "data") as cluster, Client(cluster.service_url) as client:
        for sample in samples(page):
            if sample.language != "python" or sample.test or sample.excuse:
                continue
            for (prepared, text), prepare in PREPARED.items():
                if prepared == page and text in sample.code:
                    names |= prepare(client)
            code = sample.code.replace(DOCUMENTED_URL, cluster.service_url)
            exec(compile(code, f"{page}:{sample.line}", "exec"), names)
            for said in SAID.findall(sample.code):
                assert any(said == each or said.startswith(f"{each}: ") for each in printed), said


def faults(sample: Sample) -> list[str]:
    """The faults of a sample that are found without running it."""
    where = f"{sample.page}:{sample.line}"
    if sample.excuse:
        return [] if len(sample.excuse.split()) >= 3 else [f"{where}: give a reason"]
    if sample.test:
        test = ROOT / sample.test
        named = test.is_file() and Path(sample.page).name in test.read_text()
        return [] if named else [f"{where}: {sample.test} doesn't name this page"]
    if sample.language in SHELL:
        return [f"{where}: {fault}" for line in lines(sample) if (fault := refused(line))]
    if sample.language == "json":
        json.loads(sample.code)
        return []
    if sample.language in NO_CODE or sample.language == "python":
        return []
    return [f"{where}: is neither run nor excused"]


def lines(sample: Sample) -> list[str]:
    """The commands of a shell block, without prompts, comments and output."""
    found = sample.code.replace("\\\n", " ").splitlines()
    if sample.language == "console":
        found = [line[2:] for line in found if line.startswith("$ ")]
    return [line.strip() for line in found if line.strip() and not line.startswith("#")]


def refused(line: str) -> str:
    """Why a command line isn't accepted, or an empty string."""
    words = shlex.split(re.sub(r"\[.*\]", "", line), comments=True)
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        wrong = [word for word in words[1:] if "=" not in word and word not in targets]
        return f"no target {wrong}" if wrong else ""
    if words[0] != "velaray":
        return "" if line.startswith(FOREIGN) else f"unknown command: {line}"
    try:
        return parsed(main, words[1:])
    except click.UsageError as error:
        return "" if "does not exist" in error.message else f"{line}: {error.format_message()}"


def parsed(command: click.Command, words: list[str]) -> str:
    """Parse the words of a command and its sub-commands, without running any.

    Raises `click.UsageError`.
    """
    context = click.Context(command, info_name=command.name)
    while isinstance(command, click.Group):
        name, command, words = command.resolve_command(context, words)
        if command is None:
            return f"no command {name}"
        context = click.Context(command, parent=context, info_name=name)
    command.parse_args(context, words)
    return ""


@pytest.mark.parametrize("page", pages())
def test_samples_are_run_or_excused(page: str) -> None:
    assert [fault for sample in samples(page) for fault in faults(sample)] == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```sh\nvelaray topics lst\n```", "lst"),
        ("```sh\nvelaray hosts list --nosuch\n```", "nosuch"),
        ("```sh\nmake nosuch\n```", "nosuch"),
        ("```sh\nnosuch\n```", "unknown command"),
        ("```go\nx\n```", "neither run nor excused"),
        ("<!-- not run: no -->\n```python\nx\n```", "reason"),
        ("<!-- run by tests/test_tidy.py -->\n```python\nx\n```", "doesn't name this page"),
    ],
)
def test_faults_are_found(text: str, fault: str) -> None:
    (sample,) = parse("nosuch.md", text + "\n")
    (found,) = faults(sample)
    assert fault in found


def test_a_fence_that_is_not_closed_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"a\.md: a fence"):
        list(parse("a.md", "```python\nx\n"))
