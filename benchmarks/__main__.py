"""``python -m benchmarks [NAMES…] [--rounds N] [--seconds S] [--peers P,…] [--out FILE.json]``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import (
    latency,
    memory,
    node_loss,
    peers,
    recovery,
    recovery_bytes,
    throughput,
)
from benchmarks.machine import describe_machine
from benchmarks.model import Result
from benchmarks.options import Options
from benchmarks.render import show, show_settings

FILE_WIDTH = 110
BENCHMARKS: dict[str, Callable[[Options], Result]] = {
    "recovery_bytes": recovery_bytes.run,
    "memory": memory.run,
    "recovery": recovery.run,
    "node_loss": node_loss.run,
    "throughput": throughput.run,
    "latency": latency.run,
}


def parse(words: Sequence[str] | None = None) -> tuple[list[str], Options, Path | None]:
    """Names of benchmarks, options, and where the results go; exits if they make no sense."""
    default = Options()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--rounds", type=int, default=default.rounds, help="per measurement")
    parser.add_argument(
        "--seconds", type=float, default=default.seconds, help="per timed workload and round"
    )
    parser.add_argument(
        "--peers", default=",".join(default.peers), help="compared with: " + ", ".join(peers.NAMES)
    )
    parser.add_argument("--out", type=Path, help="where to write everything as JSON")
    found = parser.parse_args(words)
    names = found.names or list(BENCHMARKS)
    wanted = tuple(found.peers.split(","))
    for kind, given, known in (
        ("benchmark", names, BENCHMARKS),
        ("peer", wanted, peers.NAMES),
    ):
        for name in given:
            if name not in known:
                parser.error(f"no {kind} {name!r}; there are {', '.join(known)}")
    if found.rounds < 1 or found.seconds <= 0:
        parser.error("--rounds must be at least 1, --seconds more than 0")
    return names, Options(found.rounds, found.seconds, wanted), found.out


def main() -> None:
    """Run the benchmarks, show each as soon as it's done, write them all if asked to."""
    names, options, out = parse()
    console = Console() if sys.stdout.isatty() else Console(width=FILE_WIDTH)
    machine = describe_machine()
    show_settings(console, "Measured on", machine)
    results = []
    for name in names:
        results.append(BENCHMARKS[name](options))
        show(console, results[-1])
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "machine": machine,
            "options": {"rounds": options.rounds, "seconds": options.seconds},
            "results": [result.as_json() for result in results],
        }
        out.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        console.print(f"Written to {out}")


if __name__ == "__main__":
    main()
