"""Where the benchmark happens: a scratch home, processes that never outlive it, corpora, the endpoint."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rehearsal.boxes import box
from rehearsal.boxes.payload import payload
from rehearsal.runner import corpus, template
from rehearsal.runner import plan as plans

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
PYTHON = str(Path(sys.executable).resolve())  # as a box has it: without this environment's packages
VERSION = "reply-v3"
WORKERS = 64
GRACE_S = 15  # for `invoke rehearse` to tear its box down when the benchmark is interrupted


@dataclass(frozen=True)
class Scratch:
    """A folder that goes with the benchmark, and the environment for what is started in it."""

    folder: Path
    environment: Mapping[str, str]
    original: Mapping[str, str]

    def new(self, name: str) -> Path:
        """A new empty folder."""
        numbered = self.folder / f"{name}-{sum(1 for _ in self.folder.iterdir())}"
        numbered.mkdir()
        return numbered


def enter(folder: Path) -> Scratch:
    """Make this process and its children live in `folder`: its home, state, caches; no proxy, no agent, no model."""
    original = dict(os.environ)
    for name in list(os.environ):
        if name.startswith(("XDG_", "INVOKE_", "MODEL_", "SSH_")) or name.lower().endswith("_proxy"):
            del os.environ[name]
    os.environ["HOME"] = os.environ["TMPDIR"] = str(folder)
    return Scratch(folder, dict(os.environ), original)


@contextlib.contextmanager
def process(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    stdin: int | None = subprocess.DEVNULL,
) -> Iterator[subprocess.Popen[str]]:
    """A command in a process group of its own, which ends with the block: asked first, then killed."""
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        try:
            yield child
        finally:
            if child.poll() is None:
                child.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(GRACE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def run(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 600,
    fine: tuple[int, ...] = (0,),
) -> str:
    """Run a command to its end and return what it printed; RuntimeError with its last words where it fails."""
    with process(command, cwd=cwd, environment=environment) as child:
        try:
            out, errors = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{command[0]} took more than {timeout_s:g} s") from error
    if child.returncode not in fine:
        last = (errors.strip() or out.strip() or "it said nothing").splitlines()[-3:]
        raise RuntimeError(f"{Path(command[0]).name} ended with {child.returncode}: {' / '.join(last)[-300:]}")
    return out


@dataclass(frozen=True)
class Used:
    """What a command used: seconds of wall and CPU time, peak memory in MB (10⁶ bytes)."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def measure(command: Sequence[str], *, cwd: Path, environment: Mapping[str, str]) -> Used:
    """Run a command, whose exit code must be 0, and say what it used."""
    launcher = [PYTHON, "-I", "-S", str(HERE / "measured.py"), *command]
    used = json.loads(run(launcher, cwd=cwd, environment=environment))
    if used.pop("code") != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {_last_event(cwd)}")
    return Used(**used)


def _last_event(directory: Path) -> str:
    log = directory / "events.jsonl"
    return log.read_text().splitlines()[-1][:300] if log.exists() else "it wrote no event"


@contextlib.contextmanager
def endpoint(milliseconds: int) -> Iterator[str]:
    """The URL of a model that answers a good draft after so long."""
    command = [PYTHON, "-I", "-S", str(HERE / "endpoint.py"), str(milliseconds)]
    with process(command, cwd=HERE, stdin=subprocess.PIPE) as child:
        assert child.stdout is not None
        yield f"http://127.0.0.1:{int(child.stdout.readline())}/v1/chat/completions"


def tickets(count: int) -> list[dict[str, object]]:
    """`count` fixtures: the shipped ones, over and over, each with an id and a first line of its own."""
    folder = ROOT / "fixtures"
    shipped = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    shipped = [fixture for fixture in shipped if fixture["template_version"] == VERSION]
    shipped = [fixture for fixture in shipped if len(fixture["ticket_body"]) < 2000]  # not the one with a mail history
    made = []
    for number in range(count):
        fixture = shipped[number % len(shipped)]
        body = f"ticket {number}\n{fixture['ticket_body']}"
        made.append({**fixture, "id": f"T-{number:05}", "ticket_body": body})
    return made


def lay_out(folder: Path, count: int, *, chat: bool = False) -> None:
    """`fixtures/` with `count` tickets and `prompts/` in `folder`; with `chat` the template's settings too."""
    (folder / "fixtures").mkdir(parents=True)
    (folder / "prompts").mkdir()
    shutil.copy(ROOT / "prompts" / f"{VERSION}.txt", folder / "prompts")
    if chat:
        shutil.copy(ROOT / "prompts" / f"{VERSION}.toml", folder / "prompts")
    for fixture in tickets(count):
        (folder / "fixtures" / f"{fixture['id']}.json").write_text(json.dumps(fixture))


@dataclass(frozen=True)
class BoxRun:
    """A run's directory as a box has it, with the command and the environment with which a box starts it."""

    directory: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]
    expected: int


def box_run(scratch: Scratch, count: int, url: str) -> BoxRun:
    """Preregister `count` tickets and lay them out as `sync` does."""
    directory = scratch.new("run")
    lay_out(directory, count)
    plan = plans.preregister(
        template.load(directory / "prompts", VERSION),
        corpus.load(directory / "fixtures", VERSION),
        run_id="bench",
        created_at="2026-11-30T00:00:00+00:00",
        repeat=1,
        concurrency=WORKERS,
        endpoint=url,
    )
    (directory / "plan.json").write_text(plan.to_json())
    archive, _ = payload()
    command = (PYTHON, "-I", "-S", str(archive), "run", str(directory))
    environment = {"MODEL_URL": url, "HOME": str(directory), "PATH": box.PATH, "LANG": box.LANG}
    return BoxRun(directory, command, environment, count)
