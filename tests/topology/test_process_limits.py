"""The settings of a process that runs many actors."""

from __future__ import annotations

import resource
import subprocess
import sys

CODE = """
import resource
from velaray.topology.ray_process import allow_many_files
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
allow_many_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_the_limit_of_open_files_is_raised_to_what_the_system_allows() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    most = 1 << 20
    assert int(found.stdout) == (most if hard == resource.RLIM_INFINITY else min(hard, most))
