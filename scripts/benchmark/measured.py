"""Runs a command and prints what it used, as JSON: exit code, wall and CPU seconds, peak memory in MB.

A process of its own, because on Linux a child's `ru_maxrss` begins with the memory of whoever started it.
"""

from __future__ import annotations

import json
import os
import sys
import time


def main(command: list[str]) -> None:
    started = time.perf_counter()
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    child = os.posix_spawn(command[0], command, os.environ, file_actions=silent)
    _, status, used = os.wait4(child, 0)
    wall = time.perf_counter() - started
    unit = 1e6 if sys.platform == "darwin" else 1e3  # bytes there, KiB here
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1.024) / unit
    code = os.waitstatus_to_exitcode(status)
    print(json.dumps({"code": code, "wall_s": wall, "cpu_s": used.ru_utime + used.ru_stime, "peak_mb": peak}))


if __name__ == "__main__":
    main(sys.argv[1:])
