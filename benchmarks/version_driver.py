"""Runs workloads of the tree in the current directory; `benchmarks.versions` starts it in each.

It reads one JSON object a line, ``{"load", "topic", "way", ...}``, and answers each with one.
An older version's tree runs this file too, so it uses only what every version has.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    """Serve requests until standard input ends. ``sys.argv[1]`` is the log of the cluster."""
    sys.path.insert(0, str(Path.cwd()))
    from benchmarks.worker import Remote

    remote = Remote("velaray", Path(sys.argv[1]))
    try:
        print(json.dumps(remote.settings()), flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            values = remote.run(request.pop("load"), 100.0, **request)
            print(json.dumps(values), flush=True)
    finally:
        remote.close()


if __name__ == "__main__":
    main()
