"""The payload's commands. Each gets one directory: where the laptop synced the run to.

    start DIR     begin (or go on with) the run, detached from this connection; print its process id
    run DIR       the run itself, in the foreground: what `start` starts
    snapshot DIR  copy the database; print its digest, size and rows as JSON
    inspect DIR   print what this run's processes hold (environment, arguments) and every file there, as JSON

The model's URL comes in DIR/box.env (mode 0600), never as an argument. Heavy imports wait until they are needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from rehearsal.runner.errors import BoxError, RehearsalError

ENV_NAME = "box.env"
PID_NAME = "run.pid"
LOCK_NAME = "run.lock"
LOG_NAME = "run.log"
EVENTS_NAME = "events.jsonl"
SNAPSHOT_NAME = "eval_runs.snapshot.db"
ALLOWED_ENVIRONMENT = ("MODEL_URL", "HOME", "PATH", "LANG")


def main(arguments: list[str]) -> int:
    """Run one command; the exit code of the process. Errors go to standard error in one sentence."""
    commands = {"start": start, "run": run, "snapshot": snapshot, "inspect": inspect}
    if len(arguments) != 2 or arguments[0] not in commands:
        sys.stderr.write(f"usage: {' | '.join(commands)} DIR\n")
        return 2
    try:
        return commands[arguments[0]](Path(arguments[1]))
    except RehearsalError as error:
        sys.stderr.write(f"{error.message}\n")
        return error.exit_code


def start(directory: Path) -> int:
    """Start `run` in a session of its own, with exactly the environment of box.env; do nothing where it is running.

    The lock is taken here and inherited, so that it is held from before `run` exists until it is gone.
    """
    environment = json.loads((directory / ENV_NAME).read_text(encoding="utf-8"))
    lock = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stdout.write(_pid_of_the_holder(directory / PID_NAME))
        return 0
    os.set_inheritable(lock, True)
    (directory / PID_NAME).unlink(missing_ok=True)
    (directory / EVENTS_NAME).unlink(missing_ok=True)  # of a start that was killed; its rows are in the database
    child = os.fork()
    if child == 0:
        _become_run(directory, environment)
    (directory / PID_NAME).write_text(f"{child}\n")
    sys.stdout.write(f"{child}\n")
    return 0


def _pid_of_the_holder(path: Path) -> str:
    """What another `start` is just about to write; it holds the lock, so it is at most a moment away."""
    for _ in range(100):
        if path.is_file() and (text := path.read_text()).endswith("\n"):
            return text
        time.sleep(0.02)
    raise BoxError("a run holds the lock and has no process id")


def _become_run(directory: Path, environment: dict[str, str]) -> NoReturn:
    try:
        os.setsid()
        os.chdir(directory)
        log = os.open(directory / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDWR)
        for target, source in ((0, null), (1, log), (2, log)):
            os.dup2(source, target)
        payload = str(Path(sys.argv[0]).resolve())
        command = [sys.executable, "-I", "-S", payload, "run", str(directory)]
        os.execve(sys.executable, command, environment)  # noqa: S606  (a fixed command, no shell wanted)
    finally:
        os._exit(127)


def run(directory: Path) -> int:
    """The run; its outcome and every failure go to the event log, whose last line is `end` or `refused`."""
    from rehearsal.runner.loop import Events
    from rehearsal.runner.loop import run as run_plan

    sys.dont_write_bytecode = True  # a team's seam is imported from the run's folder, which holds what was sent
    with Events(directory / EVENTS_NAME) as events:
        events.write(
            "start",
            pid=os.getpid(),
            python=sys.version.split()[0],
            arguments=sys.orig_argv,
            environment=_digests(os.environ),
        )
        try:
            run_plan(directory, events, url=os.environ["MODEL_URL"])
        except RehearsalError as error:
            events.write("refused", error=type(error).__name__, message=error.message, hint=error.hint)
            return error.exit_code
        except Exception as error:
            traceback.print_exc()
            events.write("refused", error="BoxError", message=f"the runner failed: {type(error).__name__}", hint="")
            return 3
    return 0


def snapshot(directory: Path) -> int:
    """Copy the database to one closed file beside it, and say what it is."""
    from rehearsal.runner.snapshot import snapshot as copy

    target = directory / SNAPSHOT_NAME
    copy(directory / "eval_runs.db", target)
    _print({"sha256": _sha256(target), "bytes": target.stat().st_size})
    return 0


def inspect(directory: Path) -> int:
    """What a secret could hide in: environment and arguments of this box's processes, and all files here.

    Values of the environment are given as digests only: the laptop knows what they should be.
    """
    files = {}
    for path in sorted(directory.rglob("*")):
        try:
            if path.is_file():
                files[str(path.relative_to(directory))] = _sha256(path)
        except FileNotFoundError:  # noqa: PERF203  (a run that ends just now takes its -wal and -shm along)
            continue
    _print({"processes": _processes(str(directory.parent)), "files": files})
    return 0


def _processes(needle: str) -> list[dict[str, Any]] | None:
    """Every process of this user whose arguments name the box's directory; None where there is no /proc."""
    proc = Path("/proc")
    if not (proc / "self" / "environ").exists():
        return None
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            if not any(needle in argument for argument in arguments):
                continue
            raw = (entry / "environ").read_bytes().decode(errors="surrogateescape")
        except OSError:
            continue
        pairs = (pair.partition("=") for pair in raw.split("\0") if pair)
        environment = _digests({name: value for name, _, value in pairs})
        found.append({"pid": int(entry.name), "arguments": arguments, "environment": environment})
    return found


def _digests(environment: Any) -> dict[str, str]:
    return {
        name: hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest() for name, value in environment.items()
    }


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        for block in iter(lambda: handle.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def _print(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
