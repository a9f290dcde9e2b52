"""Run ``python -m benchmarks --help`` for what there is; benchmarks/README.md explains it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import (
    ack_state,
    activation,
    client_memory,
    comparison,
    density,
    dispatch,
    goals,
    ledgers,
    many_topics,
    memory,
    node_loss,
    object_store,
    plan,
    recovery,
    recovery_bytes,
    replication,
    report,
    schemas,
    soak,
    spark,
)
from benchmarks.contract import Absent
from benchmarks.install import install, missing
from benchmarks.machine import describe_machine, load
from benchmarks.model import Result
from benchmarks.options import Options
from benchmarks.render import show, show_comparison, show_settings
from benchmarks.systems import registry
from velaray.topology.ray_connection import ensure_token

FILE_WIDTH = 160
LOGS = Path(__file__).parent / "out" / "logs"
ALONE: dict[str, Callable[[Options], Result]] = {
    "ack_state": ack_state.run,
    "dispatch": dispatch.run,
    "recovery_bytes": recovery_bytes.run,
    "memory": memory.run,
    "client_memory": client_memory.run,
    "recovery": recovery.run,
    "node_loss": node_loss.run,
    "ledgers": ledgers.run,
    "replication": replication.run,
    "schemas": schemas.run,
    "spark": spark.run,
    "activation": activation.run,
    "density": density.run,
    "many_topics": many_topics.run,
    "object_store": object_store.run,
    "soak": soak.run,
}
NAMES = (*plan.LOADS, *ALONE)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks for."""

    names: tuple[str, ...]
    options: Options
    out: Path | None
    markdown: Path | None


def parse(words: Sequence[str] | None = None) -> Wanted:
    """Names of benchmarks, options, and where the results go; exits if they make no sense."""
    default = Options()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"of the comparison: {', '.join(plan.LOADS)} (all by default); velaray alone: "
        f"{', '.join(ALONE)}. Or `install`: fetch peers; or `render FILE [--docs]`",
    )
    parser.add_argument("--rounds", type=int, default=default.rounds, help="per measurement")
    parser.add_argument(
        "--seconds", type=float, default=default.seconds, help="per timed workload and round"
    )
    parser.add_argument(
        "--minutes", type=float, default=default.minutes, help="for the whole comparison, or a soak"
    )
    parser.add_argument(
        "--peers", default="", help="some of, or families of: " + ", ".join(registry.NAMES)
    )
    parser.add_argument("--out", type=Path, help="results as JSON; table and plot beside it")
    parser.add_argument("--markdown", type=Path, help="table (.md) and plot (.png), elsewhere")
    found = parser.parse_args(words)
    for name in found.names:
        if name not in NAMES:
            parser.error(f"no benchmark {name!r}; there are {', '.join(NAMES)}")
    peers = []
    for name in filter(None, found.peers.split(",")):
        if not (family := registry.matching(name)):
            parser.error(f"no peer {name!r}; there are {', '.join(registry.NAMES)}")
        peers += family
    if found.rounds < 1 or found.seconds <= 0 or found.minutes <= 0:
        parser.error("--rounds must be at least 1, --seconds and --minutes more than 0")
    options = Options(
        found.rounds, found.seconds, tuple(dict.fromkeys(peers)) or default.peers, found.minutes
    )
    names = tuple(found.names) or tuple(plan.LOADS)
    return Wanted(names, options, found.out, found.markdown)


def render(words: Sequence[str]) -> None:
    """``render FILE [--docs]``: table and plot again, from a results file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks render")
    parser.add_argument("file", type=Path)
    parser.add_argument("--docs", action="store_true", help="into docs/ and README.md")
    found = parser.parse_args(words)
    document = report.load(found.file)
    made = report.publish(document) if found.docs else report.beside(document, found.file)
    for path in made:
        print(f"Written: {path}")


def measure(wanted: Wanted, console: Console) -> dict[str, Any]:
    """Run what is wanted, show each thing as soon as it's done; returns the document."""
    began, machine = time.monotonic(), describe_machine()
    show_settings(console, "Measured on", machine)
    document: dict[str, Any] = {"machine": machine, "options": asdict(wanted.options)}
    document |= {"results": [], "goals": [], "peers": {}, "notes": [], "rounds": 0}
    compared = [name for name in wanted.names if name in plan.LOADS]
    if compared:
        found = comparison.run(compared, wanted.options, LOGS, console)
        verdicts = goals.judge(found.results)
        found.notes += goals.unmeasured(found.results, compared, wanted.options.peers)
        show_comparison(console, found.results, verdicts, found.notes)
        document["results"] += [result.as_json() for result in found.results]
        document["goals"] = [{**asdict(each), "met": each.met} for each in verdicts]
        document |= {"peers": found.peers, "notes": found.notes, "rounds": found.rounds}
        document["seconds spent on"] = found.took
    for name in wanted.names:
        if name in ALONE:
            result = ALONE[name](wanted.options)
            show(console, result)
            document["results"].append(result.as_json())
    machine["load after"] = load()
    document["seconds"] = time.monotonic() - began
    console.print(f"Took {document['seconds'] / 60:.1f} minutes")
    return document


def main() -> None:
    """Install, render, or measure."""
    words = sys.argv[1:]
    if words[:1] == ["render"]:
        render(words[1:])
        return
    if words[:1] == ["install"]:
        sys.exit(1 if install(words[1:] or missing()) else 0)
    wanted = parse(words)
    ensure_token()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    console = Console() if sys.stdout.isatty() else Console(width=FILE_WIDTH)
    if any(name in plan.LOADS for name in wanted.names):
        _bring_up(wanted.options.peers, console)
    document = measure(wanted, console)
    if wanted.out is not None:
        wanted.out.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(document, indent=2, ensure_ascii=False)
        wanted.out.write_text(text + "\n", encoding="utf-8")
        made = [wanted.out, *(report.beside(document, wanted.out) if document["rounds"] else [])]
        console.print("Written: " + ", ".join(map(str, made)))
    if wanted.markdown is not None:
        report.beside(document, wanted.markdown)


def _bring_up(peers: Sequence[str], console: Console) -> None:
    """Fetch the peers that were never fetched; exit if one can't be had, before measuring."""
    families = {name.split("-")[0] for name in peers}
    failed = install([name for name in missing() if name in families])
    absent = {}
    for name in peers:
        try:
            registry.check(name)
        except Absent as error:
            problem = failed.get(name.split("-")[0])
            absent[name] = f"{error} (it wasn't fetched: {problem})" if problem else str(error)
    if not absent:
        return
    for name, problem in absent.items():
        console.print(f"{name} can't be measured: {problem}", markup=False)
    rest = ",".join(name for name in peers if name not in absent)
    console.print(f"Install what is missing, or measure without it: --peers {rest}", markup=False)
    sys.exit(1)


if __name__ == "__main__":
    main()
