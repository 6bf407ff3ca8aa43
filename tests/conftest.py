"""What every test starts from (an empty home, no agent, no keys, no proxy) and may leave running: nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# What a developer's shell may hold and the kit, or something that it starts, would obey.
SCRUBBED = {
    "COLUMNS", "EVAL_DB", "FORCE_COLOR", "LINES", "MODEL_KEY", "MODEL_URL", "NETRC", "NO_COLOR",
    "PYTHONPATH", "SSH_AGENT_PID", "SSH_ASKPASS", "SSH_AUTH_SOCK", "SSH_CONNECTION", "SSLKEYLOGFILE",
}  # fmt: skip
SCRUBBED_PREFIXES = ("INVOKE_", "REHEARSAL_", "XDG_")
GRACE_S = 5.0  # what was told to end at the last test's end may take this long


def _scrub(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    for name in list(os.environ):
        if name in SCRUBBED or name.startswith(SCRUBBED_PREFIXES) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TERM", "dumb")
    for name in ("CACHE_HOME", "CONFIG_HOME", "DATA_HOME", "RUNTIME_DIR", "STATE_HOME"):
        folder = home / name.lower()
        folder.mkdir(mode=0o700)
        monkeypatch.setenv(f"XDG_{name}", str(folder))


@pytest.fixture(scope="session", autouse=True)
def _clean_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Session-wide fixtures (a real sshd, a built wheel) start from here."""
    before = os.umask(0o022)
    with pytest.MonkeyPatch.context() as monkeypatch:
        _scrub(monkeypatch, tmp_path_factory.mktemp("home"))
        yield
    os.umask(before)


@pytest.fixture(autouse=True)
def home(_clean_session: None, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test's own empty home: no test sees another's ledger, keys or settings."""
    folder = tmp_path_factory.mktemp("home")
    cache = os.environ["XDG_CACHE_HOME"]
    _scrub(monkeypatch, folder)
    monkeypatch.setenv("XDG_CACHE_HOME", cache)  # the payload is built once for the whole session
    return folder


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of this repository."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def wheel(_clean_session: None, repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kit's wheel, built from this tree without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=repo, check=True, capture_output=True, text=True)
    (built,) = folder.glob("*.whl")
    return built


def _left_behind(basetemp: str) -> dict[int, str]:
    """Process id and command line of our children, and of all that name our temporary folder (Linux only)."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        pid = int(process.name)
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ")
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            surroundings = command + (process / "environ").read_bytes() + bytes((process / "cwd").readlink())
        except OSError:  # gone meanwhile, or another user's
            continue
        if pid != os.getpid() and (parent == os.getpid() or basetemp.encode() in surroundings):
            found[pid] = command.decode(errors="replace").strip() or "(ended, not waited for)"
    return found


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails the run if a process of the suite's is still there: the kit's promise holds for its tests too."""
    factory = getattr(session.config, "_tmp_path_factory", None)
    if factory is None or hasattr(session.config, "workerinput"):
        return  # of several workers, the process that started them looks for all
    basetemp = str(factory.getbasetemp())
    deadline = time.monotonic() + GRACE_S
    while (left := _left_behind(basetemp)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        assert reporter is not None
        reporter.ensure_newline()
        for pid, command in left.items():
            reporter.write_line(f"LEFT BEHIND by the tests: process {pid}: {command}", red=True)
