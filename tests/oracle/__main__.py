"""What a restructuring must not change: ``python -m tests.oracle VERB``.

- ``record`` runs all seeds and writes digests and traces to `tests/oracle/recorded`. It belongs in
  a commit of its own.
- ``record-histories`` does so for the digests of histories alone. The traces stay: they prove that
  the machines still answer as they did.
- ``histories`` runs all seeds again and names those whose history differs. Moves and renames must
  name none.
- ``replay`` makes the recorded calls on today's machines. Changes of scheduling must pass it.
"""

from __future__ import annotations

import argparse
import os
import sys

HASH_SEED = "0"


def main() -> int:
    """Returns 0 if nothing differs."""
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.oracle", *sys.argv[1:]])
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__)
    parser.add_argument("verb", choices=("record", "record-histories", "histories", "replay"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--every", type=int, default=1, help="only each Nth run")
    chosen = parser.parse_args()
    from tests.oracle import runs

    match chosen.verb:
        case "record":
            print(f"{runs.write_all(runs.record_all(chosen.jobs))} runs recorded")
        case "record-histories":
            print(f"{runs.write_histories(chosen.jobs)} histories changed")
        case "replay":
            print(f"{runs.replay_all()} calls gave what was recorded")
        case "histories":
            rows = runs.read_rows()[:: chosen.every]
            faults = list(runs.differing_histories(chosen.jobs, rows))
            print("\n".join([*faults, f"{len(rows)} histories, {len(faults)} differ"]))
            return 1 if faults else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
