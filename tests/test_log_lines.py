"""`velaray logs`: which lines it shows, and where it finds them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from velaray.cli.app import main
from velaray.cli.log_lines import Lines
from velaray.topology.ray_logs import read_parts, take

NAMESPACE = "velaray-standalone"
MOVED = (
    "2026-11-27T01:00:00.000000Z [info] persistent://public/default/t moves "
    "process=host/0 topic=persistent://public/default/t"
)
FAILED = (
    '{"event": "compaction failed", "timestamp": "2026-11-27T01:00:01.000000Z", "level": "error", '
    '"process": "host/1", "actor": "partition/public/default/t/-1/1", '
    '"topic": "persistent://public/default/t"}'
)
OTHER = "2026-11-27T01:00:02.000000Z [warning] slow actor='catalog' process=host/0"
TRACE = "Traceback (most recent call last):"
OUTPUT = [":job_id:01", "Fatal Python error", MOVED, FAILED, OTHER, TRACE]


def selected(name: str, level: str = "debug", process: str = "") -> list[str]:
    return [record.text for record in Lines(name, level).records(OUTPUT, process)]


@pytest.mark.parametrize(
    ("name", "level", "found"),
    [
        ("t", "debug", [MOVED, FAILED]),
        ("persistent://public/default/t", "warning", [FAILED]),
        ("partition/public/default/t/-1/1", "info", [FAILED]),
        ("host/0", "info", [MOVED, f"{OTHER}\n{TRACE}"]),
        ("catalog", "warning", [f"{OTHER}\n{TRACE}"]),
        ("catalog", "error", []),
        ("other", "debug", []),
    ],
)
def test_lines_are_selected_by_name_and_level(name: str, level: str, found: list[str]) -> None:
    assert selected(name, level) == found


def test_a_partition_belongs_to_its_topic() -> None:
    line = MOVED.replace("default/t", "default/t-partition-3")
    assert [each.text for each in Lines("t", "info").records([line])] == [line]
    assert list(Lines("t-partition-1", "info").records([line])) == []


def test_all_output_of_a_named_process_is_shown() -> None:
    assert selected("host/0", process="host/0") == [
        "Fatal Python error",
        MOVED,
        FAILED,
        f"{OTHER}\n{TRACE}",
    ]


def write(folder: Path, session: str, process: str, *lines: str) -> Path:
    path = folder / session / "logs" / f"worker-a-b-{process.replace('/', '')}.err"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = [":job_id:01", ":actor_name:HostActor", f":actor_name:{NAMESPACE}:{process}"]
    path.write_text("".join(f"{line}\n" for line in (*head, *lines)))
    return path


def test_files_of_all_sessions_are_read_and_then_what_is_new(tmp_path: Path) -> None:
    first = write(tmp_path, "session_1", "host/0", MOVED)
    write(tmp_path, "session_2", "host/1", FAILED)
    (tmp_path / "session_2" / "logs" / "worker-other.err").write_text(":actor_name:X\nno\n")
    os.symlink(tmp_path / "session_2", tmp_path / "session_latest")
    parts = read_parts(str(tmp_path), NAMESPACE, {})
    assert [process for _, process, _, _ in parts] == ["host/0", "host/1"]
    offsets: dict[str, int] = {}
    texts = [take(part, offsets) for part in parts]
    assert MOVED in texts[0]
    assert FAILED in texts[1]
    assert [take(part, offsets) for part in parts] == ["", ""]  # from a node on the same machine
    with first.open("a") as file:
        file.write(f"{OTHER}\nhalf a line")
    again = read_parts(str(tmp_path), NAMESPACE, {})
    (part,) = read_parts(str(tmp_path), NAMESPACE, offsets)
    assert take(part, dict(offsets)) == f"{OTHER}\n"
    assert [take(part, offsets) for part in again] == [f"{OTHER}\n", ""]
    assert read_parts(str(tmp_path), "velaray-another", {}) == []


def test_the_command_reads_the_output_of_a_local_cluster(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_text("".join(f"Nov 27 host velaray[1]: {line}\n" for line in OUTPUT))
    done = CliRunner().invoke(main, ["logs", "t", "--level", "error", "--file", str(file)])
    assert done.exit_code == 0, done.output
    assert done.output.rstrip().endswith(FAILED)
    piped = CliRunner().invoke(main, ["logs", "catalog", "--file", "-"], input=f"{OTHER}\n")
    assert piped.output == f"{OTHER}\n"


def test_a_followed_file_shows_each_line_at_once(tmp_path: Path) -> None:
    """Its last line too, after which nothing comes."""
    output = tmp_path / "output"
    output.write_text(f"{MOVED}\n")
    command = [sys.executable, "-u", "-c", "from velaray.cli.app import main; main()"]
    with subprocess.Popen(
        [*command, "logs", "t", "--follow", "--file", str(output)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"{MOVED}\n"
            with output.open("a") as file:
                file.write(f"{FAILED}\n")
            assert process.stdout.readline() == f"{FAILED}\n"
        finally:
            process.kill()
