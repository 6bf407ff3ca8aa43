"""The payload's own commands, as a box runs them: `python -I -S payload COMMAND DIR`, with an empty environment."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rehearsal.boxes.payload import payload
from rehearsal.evidence.artifact import newest
from rehearsal.runner.store import DB_NAME, Store
from tests.contract.misbehaving import Asked, Behaviour, answer, hang, serve
from tests.unit.runs import BAD, GOOD, judged, lay_out

ENVIRONMENT = {"HOME": "/nowhere", "PATH": os.defpath, "LANG": "C.UTF-8"}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, so that what a run leaves beside it would be seen."""
    found = tmp_path_factory.mktemp("payload") / "payload.pyz"
    found.write_bytes(payload()[0].read_bytes())
    return found


def run(
    archive: Path, *arguments: str | Path, env: Mapping[str, str] = ENVIRONMENT
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", archive, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def gate(folder: Path) -> tuple[int, str | None] | None:
    with closing(sqlite3.connect(folder / DB_NAME)) as connection:
        return newest(connection, "reply-v3")


@contextmanager
def started(archive: Path, folder: Path, url: str) -> Iterator[int]:
    """The process id of a run that `start` detached; not running any more when this ends."""
    environment = {**ENVIRONMENT, "MODEL_URL": url}
    (folder / "box.env").write_text(json.dumps(environment))
    done = run(archive, "start", folder)
    assert done.returncode == 0, done.stderr
    pid = int(done.stdout)
    try:
        yield pid
    finally:
        ended(folder, pid, kill=True)


def ended(folder: Path, pid: int, *, kill: bool = False) -> None:
    """Wait until the run has let go of its lock, which it does only by ending."""
    import fcntl

    with (folder / "run.lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if kill:
                os.kill(pid, signal.SIGKILL)
            fcntl.flock(lock, fcntl.LOCK_EX)


@pytest.mark.parametrize("arguments", [(), ("run",), ("launch", "/x"), ("run", "/x", "y")])
def test_usage(archive: Path, arguments: tuple[str, ...]) -> None:
    done = run(archive, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "usage: start | run | snapshot | inspect DIR\n"


def test_run_snapshot_and_what_the_laptop_makes_of_it(archive: Path, tmp_path: Path) -> None:
    plan = lay_out(tmp_path, 3, repeat=2)
    with serve(answer(200, GOOD.encode())) as server:
        done = run(archive, "run", tmp_path, env={**ENVIRONMENT, "MODEL_URL": server.url})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    start, *_, end = events(tmp_path)
    assert (start["event"], end) == ("start", {"event": "end", "outcome": "pass"})
    assert start["arguments"] == [sys.executable, "-I", "-S", str(archive), "run", str(tmp_path)]
    digests = {name: hashlib.sha256(value.encode()).hexdigest() for name, value in ENVIRONMENT.items()}
    assert start["environment"].pop("MODEL_URL") == hashlib.sha256(server.url.encode()).hexdigest()
    assert {name: start["environment"].get(name) for name in digests} == digests
    told = json.loads(run(archive, "snapshot", tmp_path).stdout)
    copy = tmp_path / "eval_runs.snapshot.db"
    assert told == {"sha256": hashlib.sha256(copy.read_bytes()).hexdigest(), "bytes": copy.stat().st_size}
    assert judged(tmp_path, plan, copy).verdict == "green"
    assert list(archive.parent.iterdir()) == [archive]


def test_a_run_is_refused_where_the_plan_is_another_ones(archive: Path, tmp_path: Path) -> None:
    lay_out(tmp_path)
    (tmp_path / "prompts" / "reply-v3.txt").write_text("Say anything: {{ticket_body}}")
    done = run(archive, "run", tmp_path, env={**ENVIRONMENT, "MODEL_URL": "http://127.0.0.1:9/"})
    assert done.returncode == 3
    last = events(tmp_path)[-1]
    assert (last["event"], last["error"]) == ("refused", "VoidRun")
    assert last["message"].startswith("the template is not what the plan says")


@pytest.mark.parametrize(("url", "error"), [("ftp://x/", "UsageError"), (None, "BoxError")])
def test_whatever_stops_a_run_is_its_last_event(archive: Path, tmp_path: Path, url: str | None, error: str) -> None:
    lay_out(tmp_path)
    done = run(archive, "run", tmp_path, env={**ENVIRONMENT, **({} if url is None else {"MODEL_URL": url})})
    assert done.returncode in (2, 3)
    assert (events(tmp_path)[-1]["event"], events(tmp_path)[-1]["error"]) == ("refused", error)


def test_a_snapshot_of_nothing_is_one_sentence(archive: Path, tmp_path: Path) -> None:
    done = run(archive, "snapshot", tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith("eval_runs.db can't be copied")
    assert done.stderr.count("\n") == 1


def slow_after(count: int) -> tuple[Behaviour, threading.Event]:
    """Answers `count` requests and then hangs; the event tells that it hangs."""
    asked = 0
    hanging = threading.Event()

    async def behave(request: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        if asked <= count:
            await answer(200, GOOD.encode())(request, writer)
            return
        hanging.set()
        await hang(request, writer)

    return behave, hanging


def test_kill_9_in_the_middle_then_only_the_missing_attempts(archive: Path, tmp_path: Path) -> None:
    plan = lay_out(tmp_path, 5, repeat=2)
    behaviour, hanging = slow_after(7)
    with serve(behaviour) as server, started(archive, tmp_path, server.url) as pid:
        assert hanging.wait(60)
        again = run(archive, "start", tmp_path)
        assert (again.returncode, again.stdout) == (0, f"{pid}\n"), "it is running: nothing to start"
        os.kill(pid, signal.SIGKILL)
        ended(tmp_path, pid)
    assert gate(tmp_path) == (0, "run_incomplete")
    with Store(tmp_path / DB_NAME, plan) as store:
        missing = sorted(entry.id for entry, _ in store.missing())
        assert store.done() in (6, 7), "an answer may have been on its way to its row"
    with serve(answer(200, GOOD.encode())) as server, started(archive, tmp_path, server.url) as pid:
        ended(tmp_path, pid)
    assert sorted(asked.json()["prompt"][-5:-2] for asked in server.asked) == missing
    assert gate(tmp_path) == (1, None)
    assert json.loads(run(archive, "snapshot", tmp_path).stdout)["bytes"] > 0
    found = judged(tmp_path, plan, tmp_path / "eval_runs.snapshot.db")
    assert (found.verdict, found.counts.passed) == ("green", 10)
    assert (tmp_path / "run.log").read_text() == ""


def test_what_was_red_before_the_kill_stays_red(archive: Path, tmp_path: Path) -> None:
    lay_out(tmp_path, 1, repeat=2)
    first = threading.Event()

    async def behave(request: Asked, writer: asyncio.StreamWriter) -> None:
        if first.is_set():
            await hang(request, writer)
        first.set()
        await answer(200, BAD.encode())(request, writer)

    with serve(behave) as server, started(archive, tmp_path, server.url) as pid:
        while not [event for event in events_if_any(tmp_path) if event["event"] == "attempt"]:
            assert not ended_yet(tmp_path)
            time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
        ended(tmp_path, pid)
    with serve(answer(200, GOOD.encode())) as server, started(archive, tmp_path, server.url) as pid:
        ended(tmp_path, pid)
    assert gate(tmp_path) == (0, "forbidden:refund has been issued")


def events_if_any(folder: Path) -> list[dict[str, Any]]:
    return events(folder) if (folder / "events.jsonl").exists() else []


def ended_yet(folder: Path) -> bool:
    return bool(events_if_any(folder)) and events(folder)[-1]["event"] in ("end", "refused")


def test_the_detached_run_holds_exactly_its_environment_and_inspect_shows_it(archive: Path, tmp_path: Path) -> None:
    box = tmp_path / "box"
    box.mkdir()
    lay_out(box)
    behaviour, hanging = slow_after(0)
    with serve(behaviour) as server, started(archive, box, server.url) as pid:
        assert hanging.wait(60)
        told = json.loads(run(archive, "inspect", box, env={**ENVIRONMENT, "SECRET": "x"}).stdout)
        assert os.getsid(pid) == pid
    wanted = {**ENVIRONMENT, "MODEL_URL": server.url}
    digests = {name: hashlib.sha256(value.encode()).hexdigest() for name, value in wanted.items()}
    if told["processes"] is not None:
        (process,) = [found for found in told["processes"] if found["pid"] == pid]
        assert process["environment"] == digests
        assert process["arguments"] == [sys.executable, "-I", "-S", str(archive), "run", str(box)]
        assert "SECRET" not in {name for found in told["processes"] for name in found["environment"]}
    plan_bytes = (box / "plan.json").read_bytes()
    assert told["files"]["plan.json"] == hashlib.sha256(plan_bytes).hexdigest()
    assert {"fixtures/T-1.json", "prompts/reply-v3.txt", "box.env", "run.pid", DB_NAME} <= set(told["files"])
    assert {event["event"]: event for event in events(box)}["start"]["environment"] == digests
