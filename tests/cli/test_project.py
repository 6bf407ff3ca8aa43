"""`invoke doctor`, `init`, `lab`, `boxes`, `--list` and `--help`, as typed."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import httpx
import pytest

from rehearsal import lab
from rehearsal.tasks import namespace
from tests.cli.project import Project, eventually, plain


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def test_the_doctor_finds_a_healthy_project(project: Project) -> None:
    done = project.invoke("doctor", env={"MODEL_URL": "http://127.0.0.1:9/v1"})
    assert done.code == 0, done.output
    assert "`invoke rehearse` can work here" in plain(done.output)
    for what in ("python", "bubblewrap", "ssh", "payload", "model", "template", "corpus", "boxes"):
        assert re.search(rf"^{what} ", done.output, re.MULTILINE), what


def test_the_doctor_says_what_is_missing_and_what_to_do(project: Project) -> None:
    project.fixture("T-1-charged-twice", forbidden_substrings=[])
    done = project.invoke("doctor", "--json", env={"MODEL_URL": "nonsense"})
    checks = {check["what"]: check for check in done.json["checks"]}
    assert (done.code, done.json["exit_code"]) == (2, 2)
    assert checks["model"]["state"] == "missing"
    assert "forbids nothing" in checks["template and corpus"]["detail"]


def test_init_overwrites_nothing(tmp_path: Path, project: Project) -> None:
    before = (project.folder / "fixtures" / "T-2-lawyer.json").read_bytes()
    (project.folder / "fixtures" / "T-1842-duplicate-capture.json").write_text("mine")
    done = project.invoke("init")
    assert done.code == 0
    assert "kept   tasks.py, which was there" in done.output
    assert "wrote  invoke.yaml" in done.output
    assert (project.folder / "fixtures" / "T-1842-duplicate-capture.json").read_text() == "mine"
    assert (project.folder / "fixtures" / "T-2-lawyer.json").read_bytes() == before
    assert (project.folder / "prompts" / "reply-v2.txt").is_file()


def test_list_and_help_read_well(project: Project) -> None:
    listed = project.invoke("--list").output
    for name, task in namespace.tasks.items():
        assert re.search(rf"^  {name} ", listed, re.MULTILINE), name
        shown = project.invoke("--help", name).output
        for argument in task.get_arguments():
            flag = f"--{argument.name.replace('_', '-')}"
            assert re.search(rf"{flag}(=\S+)?\s+\S", shown), f"{name} {flag} has no help"


def test_no_box_is_up(project: Project) -> None:
    done = project.invoke("boxes")
    assert (done.code, done.output.strip()) == (0, "no box is up")
    assert project.boxes() == []


@pytest.mark.skipif(lab.unavailable() is not None, reason=str(lab.unavailable()))
def test_the_lab_answers_other_programs_until_interrupted(project: Project) -> None:
    process = project.start("lab")
    assert process.stdout is not None
    url = None
    for line in process.stdout:
        if found := re.search(r"MODEL_URL=(\S+)", line):
            url = found[1]
            break
    assert url is not None
    assert httpx.get(url.replace("/v1/chat/completions", "/health")).status_code == 200
    os.killpg(process.pid, signal.SIGINT)
    process.communicate()
    assert process.returncode == 130

    def is_down() -> bool:
        try:
            httpx.get(url.replace("/v1/chat/completions", "/health"), timeout=1)
        except httpx.TransportError:
            return True
        return False

    assert eventually(is_down, 10)
