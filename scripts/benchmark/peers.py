"""Other tools on the same work, installed into a temporary place: only with --peers.

The registries are the ones that npm and pip are set up for on this machine.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from benchmark import places
from benchmark.figures import Figure, Skipped
from benchmark.places import ROOT, VERSION, WORKERS, Scratch

if TYPE_CHECKING:
    from tests.hosts.sshd import Sshd

INSTALL_S = 900
Rows = list[Figure | Skipped]


def evaluators(scratch: Scratch, url: str, *, quick: bool) -> Rows:
    """Attempts/s of promptfoo and inspect_ai on the runner's work, start-up not counted."""
    count = 200 if quick else 600
    few = WORKERS
    rows: Rows = []
    size = f"({count} tickets, without its start)"
    for name, prepare in ((f"promptfoo {size}", _promptfoo), (f"inspect_ai {size}", _inspect)):

        def measure(prepare: Callable[[Scratch, str, int], Callable[[], None]] = prepare) -> float:
            # Two sizes, so that what a start costs drops out.
            small, large = prepare(scratch, url, few), prepare(scratch, url, count)
            return (count - few) / max(1e-9, _seconds(large) - _seconds(small))

        rows.append(_row(name, measure, "attempts/s"))
    return rows


def start_ups(scratch: Scratch, url: str) -> Rows:
    """Seconds that promptfoo and inspect_ai need for three items, from start to end, without any box."""
    rows: Rows = []
    for name, prepare in (("promptfoo, no box", _promptfoo), ("inspect_ai, no box", _inspect)):

        def measure(prepare: Callable[[Scratch, str, int], Callable[[], None]] = prepare) -> float:
            act = prepare(scratch, url, 3)
            act()
            return statistics.median(_seconds(act) for _ in range(3))

        rows.append(_row(name, measure, "s"))
    return rows


def deployers(scratch: Scratch, server: Sshd) -> Rows:
    """Seconds that pyinfra and ansible need for the five bare steps on the same OpenSSH host."""
    rows: Rows = []
    for name, prepare in (("pyinfra, five steps", _pyinfra), ("ansible, five steps", _ansible)):

        def measure(prepare: Callable[[Scratch, Sshd], Callable[[], None]] = prepare) -> float:
            act = prepare(scratch, server)
            act()
            return statistics.median(_seconds(act) for _ in range(3))

        rows.append(_row(name, measure, "s"))
    return rows


def _row(name: str, measure: Callable[[], float], unit: str) -> Figure | Skipped:
    try:
        return Figure(name, measure(), unit)
    except (RuntimeError, OSError, ValueError) as error:
        return Skipped(name, str(error))


def _seconds(act: Callable[[], None]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def _environment(scratch: Scratch, **more: str) -> Mapping[str, str]:
    """For installing and running them: the user's own settings of npm and pip; nothing phones home."""
    off = {
        "PROMPTFOO_CONFIG_DIR": str(scratch.folder / "promptfoo"),
        "PROMPTFOO_DISABLE_TELEMETRY": "1",
        "PROMPTFOO_DISABLE_UPDATE": "1",
        "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1",
        "ANSIBLE_HOME": str(scratch.folder / "ansible"),
    }
    return {**scratch.original, "TMPDIR": str(scratch.folder), **off, **more}


def _node(scratch: Scratch, package: str) -> Path:
    folder = scratch.folder / "node"
    if not (folder / "node_modules" / package).is_dir():
        folder.mkdir(exist_ok=True)
        command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel=error", package]
        places.run(command, cwd=folder, environment=_environment(scratch), timeout_s=INSTALL_S)
    return folder / "node_modules" / ".bin"


def _python(scratch: Scratch, *packages: str) -> Path:
    folder = scratch.folder / f"venv-{packages[0]}"
    if not (folder / "ready").is_file():
        environment = _environment(scratch)
        places.run([sys.executable, "-m", "venv", str(folder)], cwd=scratch.folder, environment=environment)
        command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-cache-dir", *packages]
        places.run(command, cwd=scratch.folder, environment=environment, timeout_s=INSTALL_S)
        (folder / "ready").touch()
    return folder / "bin"


def _prompts(count: int) -> list[str]:
    text = (ROOT / "prompts" / f"{VERSION}.txt").read_text()
    return [text.replace("{{ticket_body}}", str(fixture["ticket_body"])) for fixture in places.tickets(count)]


def _promptfoo(scratch: Scratch, url: str, count: int) -> Callable[[], None]:
    """The prompts over HTTP, with the article's checks: keys that must be there, words that must not."""
    command = _node(scratch, "promptfoo") / "promptfoo"
    fixtures = places.tickets(count)
    tests = [
        {
            "vars": {"prompt_text": prompt},
            "assert": [
                {"type": "is-json", "value": {"type": "object", "required": fixture["must_include_keys"]}},
                *({"type": "not-icontains", "value": words} for words in _words(fixture)),
            ],
        }
        for fixture, prompt in zip(fixtures, _prompts(count), strict=True)
    ]
    headers = {"Content-Type": "application/json"}
    request = {"url": url, "method": "POST", "headers": headers, "body": {"prompt": "{{prompt}}"}}
    provider = {"id": "http", "config": {**request, "transformResponse": "text"}}
    folder = scratch.new("promptfoo")
    config = {"prompts": ["{{prompt_text}}"], "providers": [provider], "tests": tests}
    (folder / "config.json").write_text(json.dumps(config))
    arguments = [
        str(command), "eval", "-c", "config.json", "-j", str(WORKERS), "--no-cache", "--no-table", "--no-progress-bar",
        "-o", "out.json",
    ]  # fmt: skip

    def act() -> None:
        # 100: it ran, and some test failed
        places.run(arguments, cwd=folder, environment=_environment(scratch), fine=(0, 100))
        stats = json.loads((folder / "out.json").read_text())["results"]["stats"]
        if stats["successes"] != count:
            raise RuntimeError(f"promptfoo passed {stats['successes']} of {count}")

    return act


def _words(fixture: Mapping[str, object]) -> list[str]:
    words = fixture["forbidden_substrings"]
    assert isinstance(words, list)
    return words


_TASK = """\
import json
from inspect_ai import Task, task
from inspect_ai.dataset import json_dataset
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import generate

@scorer(metrics=[accuracy()])
def frozen():
    async def score(state, target):
        said = json.loads(state.output.completion)
        bad = [key for key in state.metadata["keys"] if key not in said]
        bad += [words for words in state.metadata["words"] if words.lower() in state.output.completion.lower()]
        return Score(value=0 if bad else 1)
    return score

@task
def tickets():
    return Task(dataset=json_dataset("samples.json"), solver=generate(), scorer=frozen())
"""


def _inspect(scratch: Scratch, url: str, count: int) -> Callable[[], None]:
    command = _python(scratch, "inspect_ai", "openai") / "inspect"
    folder = scratch.new("inspect")
    samples = [
        {"input": prompt, "target": "", "metadata": {"keys": fixture["must_include_keys"], "words": _words(fixture)}}
        for fixture, prompt in zip(places.tickets(count), _prompts(count), strict=True)
    ]
    (folder / "samples.json").write_text(json.dumps(samples))
    (folder / "tickets.py").write_text(_TASK)
    base = url.removesuffix("/chat/completions")
    environment = _environment(scratch, BENCH_BASE_URL=base, BENCH_API_KEY="none")
    arguments = [
        str(command), "eval", "tickets.py", "--model", "openai-api/bench/bench", "--max-connections", str(WORKERS),
        "--max-samples", str(WORKERS), "--display", "none",
    ]  # fmt: skip

    def act() -> None:
        places.run(arguments, cwd=folder, environment=environment)

    return act


def _pyinfra(scratch: Scratch, server: Sshd) -> Callable[[], None]:
    command = _python(scratch, "pyinfra") / "pyinfra"
    folder = _files(scratch)
    base = f"{server.home}/pyinfra"
    (folder / "inventory.py").write_text(
        f"hosts = [({server.host!r}, {{'ssh_user': {server.user!r}, 'ssh_port': {server.port},"
        f" 'ssh_key': {str(server.identity)!r}, 'ssh_strict_host_key_checking': 'off'}})]\n"
    )
    (folder / "deploy.py").write_text(
        "from pyinfra.operations import files, server\n"
        f"files.directory(path={base!r})\n"
        f"files.put(src='payload.pyz', dest={base + '/payload.pyz'!r})\n"
        f"files.put(src='corpus.tar', dest={base + '/corpus.tar'!r})\n"
        f"server.shell(commands=['tar -xf {base}/corpus.tar -C {base}'])\n"
        f"files.get(src={base + '/corpus.tar'!r}, dest='got.tar', force=True)\n"
        f"files.directory(path={base!r}, present=False)\n"
    )

    def act() -> None:
        arguments = [str(command), "-y", "inventory.py", "deploy.py"]
        places.run(arguments, cwd=folder, environment=_environment(scratch))

    return act


def _ansible(scratch: Scratch, server: Sshd) -> Callable[[], None]:
    command = _python(scratch, "ansible-core") / "ansible-playbook"
    folder = _files(scratch)
    base = f"{server.home}/ansible"
    (folder / "inventory").write_text(
        f"bench ansible_host={server.host} ansible_port={server.port} ansible_user={server.user}"
        f" ansible_ssh_private_key_file={server.identity} ansible_python_interpreter={places.PYTHON}\n"
    )
    steps = [
        {"file": {"path": base, "state": "directory"}},
        {"copy": {"src": "payload.pyz", "dest": f"{base}/payload.pyz"}},
        {"copy": {"src": "corpus.tar", "dest": f"{base}/corpus.tar"}},
        {"command": f"tar -xf {base}/corpus.tar -C {base}"},
        {"fetch": {"src": f"{base}/corpus.tar", "dest": "got/", "flat": True}},
        {"file": {"path": base, "state": "absent"}},
    ]
    # A playbook is YAML, and JSON is YAML.
    (folder / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": steps}]))
    environment = _environment(scratch, ANSIBLE_HOST_KEY_CHECKING="False")

    def act() -> None:
        places.run([str(command), "-i", "inventory", "play.yml"], cwd=folder, environment=environment)

    return act


def _files(scratch: Scratch) -> Path:
    """A folder with what is put on the host."""
    from rehearsal.boxes.payload import payload

    folder = scratch.new("deploy")
    (folder / "payload.pyz").write_bytes(payload()[0].read_bytes())
    (folder / "corpus.tar").write_bytes((scratch.folder / "corpus.tar").read_bytes())
    return folder
