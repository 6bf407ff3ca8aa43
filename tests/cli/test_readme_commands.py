"""Every command of the README, run as it stands there; what it shows is what comes out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from rehearsal import lab
from tests.cli.project import plain

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LONGEST_S = 300

# Where the exit code is not 0, the README says so beside the command.
RED = ".venv/bin/invoke rehearse --template reply-v2"
# These run this suite or take minutes; CI runs them as they stand here.
IN_CI = ("scripts/setup && .venv/bin/invoke rehearse", "scripts/test", "scripts/check", "scripts/bench --quick")


def blocks() -> list[list[str]]:
    """The commands of each console block."""
    found = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    return [[line[2:] for line in block.splitlines() if line.startswith("$ ")] for block in found]


def shown(command: str) -> list[str]:
    """The lines that the README shows below a command."""
    _, _, rest = README.partition(f"$ {command}\n")
    return [line for line in rest.partition("```")[0].splitlines() if line.strip() and not line.startswith("$ ")]


def run(command: str, folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )


def masked(line: str) -> str:
    """A line without what differs from run to run and from folder to folder."""
    line = re.sub(r"\d{8}T\d{6}Z-[0-9a-f]{6}|box-[0-9a-f]{8}", "ID", line)
    return plain(re.sub(r"\S*\.rehearsal/runs/\S*|\S*/runs/ID", "EVIDENCE", line))


def test_every_command_is_run_by_a_test_or_by_ci() -> None:
    commands = {command for block in blocks() for command in block}
    here = {command for block in (PROMPT_FIGHT, CLEANING_UP, OWN_REPOSITORY) for command in block}
    assert commands == {RED, *IN_CI, *here}
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    for command in IN_CI:
        assert command in ci, f".ci/run does not run `{command}`"


PROMPT_FIGHT = [".venv/bin/invoke provision", ".venv/bin/invoke sync run pull", ".venv/bin/invoke teardown"]
CLEANING_UP = [".venv/bin/invoke boxes", ".venv/bin/invoke cleanup --dry-run", ".venv/bin/invoke cleanup"]
OWN_REPOSITORY = ["python -m rehearsal init", "invoke doctor", "invoke rehearse"]


@pytest.fixture(scope="module")
def model() -> Iterator[Mapping[str, str]]:
    """The lab model once for all commands, where it can run."""
    if why := lab.unavailable():
        pytest.skip(why)
    with lab.start() as endpoint:
        yield {"MODEL_URL": endpoint.url}


@pytest.fixture
def out(tmp_path: Path) -> Mapping[str, str]:
    return {"INVOKE_REHEARSAL_OUT": str(tmp_path / "runs")}


@pytest.fixture
def two_tickets(tmp_path: Path) -> Mapping[str, str]:
    """Two of the shipped tickets: CI runs all of them with the README's first command."""
    folder = tmp_path / "two"
    folder.mkdir()
    for name in ("T-1842-duplicate-capture.json", "T-1907-chargeback-deadline.json"):
        shutil.copy(ROOT / "fixtures" / name, folder)
    return {"INVOKE_REHEARSAL_FIXTURES": str(folder)}


def test_the_loosened_prompt_ends_red_as_shown(model: Mapping[str, str], out: Mapping[str, str]) -> None:
    done = run(RED, ROOT, {**model, **out, "COLUMNS": "120"})
    assert done.returncode == 1, done.stderr
    lines = {masked(line) for line in done.stdout.splitlines()}
    for line in shown(RED):
        if "attempt" in line or line.startswith(("RED", "fixture")):
            assert re.sub(r"model \S+", "", masked(line)) in {re.sub(r"model \S+", "", seen) for seen in lines}


def test_the_prompt_fight(model: Mapping[str, str], out: Mapping[str, str], two_tickets: Mapping[str, str]) -> None:
    for command in PROMPT_FIGHT:
        done = run(command, ROOT, {**model, **out, **two_tickets})
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def test_cleaning_up(out: Mapping[str, str]) -> None:
    assert run(PROMPT_FIGHT[0], ROOT, out).returncode == 0
    for command in CLEANING_UP:
        done = run(command, ROOT, out)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    assert "no box is up" in run(CLEANING_UP[0], ROOT, out).stdout


def test_in_a_repository_of_ones_own_from_the_wheel(
    wheel: Path, model: Mapping[str, str], two_tickets: Mapping[str, str], tmp_path: Path
) -> None:
    """The wheel in a fresh environment; its dependencies are those of this one, by a path file."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    site = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"
    zipfile.ZipFile(wheel).extractall(site)  # all that an installer does with a wheel without scripts or data
    ours = Path(sys.prefix, "lib", site.parent.name, "site-packages")
    (site / "dependencies.pth").write_text(f"{ours}\n")
    scripts = tmp_path / "venv" / "bin"
    (scripts / "invoke").write_text(f"#!{scripts / 'python'}\nfrom invoke.main import program\nprogram.run()\n")
    (scripts / "invoke").chmod(0o755)
    team = tmp_path / "team"
    team.mkdir()
    (team / "invoke.yaml").write_text("rehearsal: {template: reply-v3, repeat: 1}\n")
    environment = {**model, **two_tickets, "PATH": f"{scripts}:/usr/bin:/bin"}
    for command in OWN_REPOSITORY:
        done = run(command, team, environment)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    assert (team / "invoke.yaml").read_text() == "rehearsal: {template: reply-v3, repeat: 1}\n"
    where = run("python -c 'import rehearsal; print(rehearsal.__file__)'", team, environment).stdout
    assert where.startswith(str(site)), "the kit under test is the wheel's"
    assert "kept   invoke.yaml, which was there" in run(OWN_REPOSITORY[0], team, environment).stdout
