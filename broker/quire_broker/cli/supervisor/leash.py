"""`python -m quire_broker.cli.supervisor.leash PARENT MODULE ARGUMENTS`: a module in a process that dies with PARENT.

The kernel sees to it, whatever ends the parent: a process that lived on would hold ports and directories of which
nobody knows any more. Not by a function that runs between fork and exec: threads and gRPC do not go with that.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1
"""From <linux/prctl.h>."""


def main() -> None:
    parent, module = int(sys.argv[1]), sys.argv[2]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        sys.exit(f"quire: the kernel refuses to tie this process to process {parent} (errno {ctypes.get_errno()})")
    if os.getppid() != parent:  # it died before we asked to be told
        sys.exit(f"quire: process {parent}, which started this one, is gone")
    sys.argv[1:] = sys.argv[3:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
