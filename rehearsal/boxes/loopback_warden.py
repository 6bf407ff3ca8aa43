"""The warden of a loopback box: starts it, ends it in time, and removes what it leaves. Runs on the laptop.

One process a box, started as `python3 -I -S loopback_warden.py DIRECTORY LISTENER_FD`; it needs no other file
of the kit and survives whoever started it. Its orders come as one line of JSON on standard input. Unless they
say `keep`, the end of standard input is the end of the box: the kernel closes a pipe whatever kills its
owner, and unlike Linux's parent-death signal it does not fire when only a thread ends.

The driver uses the same functions from another process, for a box whose warden was itself killed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

CLEAR_S = 10  # for everything in a box to die of SIGKILL, in seconds


@dataclass(frozen=True)
class Orders:
    """What a warden is told.

    argv, env   how to start the box's server
    keys        the line that the server reads first
    sites       folders with psutil in them
    parent      the process id of who asked
    keep        outlive them
    ttl_s       seconds the box may live
    ends_at     the same as a time of day (seconds since 1970)
    """

    argv: list[str]
    env: dict[str, str]
    keys: dict[str, str]
    sites: list[str]
    parent: int
    keep: bool
    ttl_s: int
    ends_at: float


def is_warden(process: psutil.Process, directory: Path) -> bool:
    """Whether a process is the warden of the box in `directory`, by its arguments."""
    argv = process.info["cmdline"] or []
    return len(argv) > 2 and Path(argv[-3]).name == Path(__file__).name and argv[-2] == str(directory)


def occupants(directory: Path) -> list[psutil.Process]:
    """Everything that runs for the box in `directory`, its warden included, as far as outsiders can prove it.

    That is every process of this user, without a terminal, that has the box's own directory in an argument
    or as its HOME: a detached program carries it in both. Somebody's editor or shell in it has a terminal.
    """
    import psutil

    home = f"{directory}/home"
    me = psutil.Process()
    spared = {me.pid, *(parent.pid for parent in me.parents())}
    found = []
    for process in psutil.process_iter(["uids", "cmdline"]):
        uids, argv = process.info["uids"], process.info["cmdline"]
        if process.pid in spared or uids is None or uids.real != os.getuid():
            continue
        try:
            named = is_warden(process, directory) or any(f"{arg}/".find(f"{home}/") >= 0 for arg in argv or [])
            if (named or f"{process.environ().get('HOME')}/".startswith(f"{home}/")) and not process.terminal():
                found.append(process)
        except psutil.Error:  # gone meanwhile, or not ours to look into
            continue
    return found


def clear(directory: Path, *, descendants: bool = False) -> None:
    """Kill all that runs for the box until none is left; with `descendants` also all that this process began.

    Raises TimeoutError after 10 s.
    """
    import psutil

    deadline = time.monotonic() + CLEAR_S
    while True:
        found = occupants(directory) + (psutil.Process().children(recursive=True) if descendants else [])
        if not found:
            return
        if time.monotonic() > deadline:
            pids = ", ".join(str(process.pid) for process in found)
            raise TimeoutError(f"processes of the box do not die: {pids}")
        for process in found:
            try:
                process.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(found, timeout=0.05)  # reaps; somebody else's zombie is no occupant


def remove(directory: Path) -> None:
    """Remove the box's directory and all below it, following no link; OSError where something resists.

    `rm` walks relative to open directories, so that neither depth nor length of a path stops it.
    """
    rm = ["rm", "-rf", "--", str(directory)]
    if subprocess.run(rm, capture_output=True, check=False).returncode == 0:
        return
    # A box may have taken away the permissions of its own directories.
    writable = ["find", str(directory), "-type", "d", "-exec", "chmod", "u+rwx", "{}", ";"]
    subprocess.run(writable, capture_output=True, check=False)
    again = subprocess.run(rm, capture_output=True, text=True, errors="replace", check=False)
    if again.returncode != 0:
        raise OSError(again.stderr.strip()[-500:])


def _adopt_orphans() -> None:
    """Become the parent of every process of the box that loses its own (Linux), so that none gets lost."""
    if sys.platform == "linux":
        import ctypes

        pr_set_child_subreaper = 36  # <linux/prctl.h>
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def _has_ended(child: int) -> bool:
    """Whether the server has ended; adopted orphans that have are reaped on the way."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid in (0, child):
            return pid == child


def _watch(server: int, orders: Orders) -> None:
    """Return when the box's time is over, its owner is gone, or its server has ended.

    Two clocks, the first to end counts: one goes on while a laptop sleeps, the other can't be set back.
    """
    ends = time.monotonic() + orders.ttl_s
    while time.time() < orders.ends_at and time.monotonic() < ends and not _has_ended(server):
        ended, _, _ = select.select([] if orders.keep else [0], [], [], 1)
        # A forked child of the owner may hold the pipe open; the owner's death shows here all the same.
        if not orders.keep and (ended or os.getppid() != orders.parent):
            return


def _start(orders: Orders, listener: int) -> subprocess.Popen[bytes]:
    """Start the server and tell it its keys. Its standard input stays open: its end would be the server's."""
    server = subprocess.Popen(orders.argv, env=orders.env, stdin=subprocess.PIPE, pass_fds=[listener])
    os.close(listener)
    assert server.stdin
    server.stdin.write(json.dumps(orders.keys).encode() + b"\n")
    server.stdin.flush()
    return server


def main(directory: Path, listener: int) -> None:
    """Run one box from its start to the removal of its directory."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        line = sys.stdin.buffer.readline()
        if line:
            orders = Orders(**json.loads(line))
            server = _start(orders, listener)
            _adopt_orphans()
            sys.path += orders.sites
            import psutil  # noqa: F401  now, while nobody waits for it

            _watch(server.pid, orders)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        clear(directory, descendants=True)
        remove(directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
