"""Becomes a command that ends with its parent; run as a script: parent's process id, command.

The system kills it when the thread that started it ends, whatever the cause.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Request the signal, then become the command."""
    parent, *command = sys.argv[1:]
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit("the system doesn't end children with their parent")
    if os.getppid() == int(parent):  # otherwise the parent ended before the request
        os.execv(command[0], command)


if __name__ == "__main__":
    main()
