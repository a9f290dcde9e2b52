"""The settings of a process that runs actors: logs, title, cycle collection and limits."""

from __future__ import annotations

import gc
import os
import resource
from pathlib import Path

from velaray.topology.config import ClusterConfig
from velaray.topology.logs import configure_logs

_GC_THRESHOLDS = (200_000, 20, 50)
"""The threshold of Python's cycle collector. Some 20,000 entries under way with several objects
each must stay below it. A message leaves no cycle behind, a client's connection some 70 objects."""
_MANY_FILES = 1 << 20
BACKGROUND_NICENESS = 10
"""The niceness of work in the background, such as garbage collection: clients don't wait for it."""


def name_process(actor: object, config: ClusterConfig, name: str) -> None:
    """Show the name of a Ray actor in the title and in the log lines of its process.

    Outside a worker process of Ray this does nothing.
    """
    # A cluster without Ray uses the other functions of this module.
    from ray._private.worker import WORKER_MODE, global_worker

    if global_worker.mode == WORKER_MODE:
        configure_logs(config.log_format, config.log_level, process=name)
        # Ray sets the title anew after each call, and takes it from the name of the class.
        type(actor).__name__ = repr(actor)


def collect_garbage_rarely() -> None:
    """Exclude long-lived objects from cycle collection, and run it rarely.

    Objects per message are freed by reference counts. With Python's own thresholds, cycle
    collection took a third of the time of publishing.
    """
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def allow_many_files() -> None:
    """Raise the limit of open files as far as the system allows.

    An actor that writes keeps two files open, and each client a connection. The usual limit of
    1,024 would end at some 250 busy topics with a subscription each.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, _MANY_FILES)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def resident_bytes() -> int:
    """The resident memory of this process in bytes; where the system doesn't tell it, the most that
    it ever had."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
