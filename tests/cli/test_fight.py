"""A prompt fight, as typed: provision, sync, run, pull, edit, again, teardown."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.project import PROMPT, Project, eventually, plain, reply, slow
from tests.contract.misbehaving import DRAFT, answer


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path / "project")
    yield project
    project.invoke("cleanup")


def test_edit_and_again_on_one_box(project: Project) -> None:
    made = project.invoke("provision", "--json").json["box"]
    assert made["state"] == "armed"
    with project.model(answer(200, reply(suggested_reply="your refund has been issued"))):
        runs = []
        for expected, body in ((1, None), (0, DRAFT)):
            if body is not None:
                (project.folder / "prompts" / "reply-v3.txt").write_text(PROMPT + "Be brief.\n")
                with project.model(answer(200, body)):
                    done = project.invoke("sync", "run", "pull")
            else:
                done = project.invoke("sync", "run", "pull")
            assert done.code == expected, done.errors
            runs.append(project.boxes()[0]["run_id"])
    assert runs[0] != runs[1]
    assert [row["box_id"] for row in project.boxes()] == [made["id"]]
    done = project.invoke("teardown", "--json")
    assert (done.code, done.json["box"]["state"]) == (0, "gone")
    assert project.boxes() == []


def test_a_run_that_was_killed_goes_on_with_what_is_missing(project: Project) -> None:
    project.invoke("provision")
    with project.model(slow(0.2)) as model:
        project.invoke("sync", "--repeat", "5", "--concurrency", "1")
        process = project.start("run")
        assert eventually(lambda: len(model.asked) > 3)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate()
        assert process.returncode == 130
        assert "is still up" in plain(output)
        done = project.invoke("run")
        assert done.code == 0, done.errors
        done = project.invoke("pull", "--json")
    assert done.json["counts"] == {"expected": 15, "passed": 15, "failed": 0, "errors": 0}
    rows = sqlite3.connect(Path(done.json["evidence"]) / "eval_runs.db").execute(
        "SELECT count(*), count(DISTINCT fixture_id || attempt) FROM eval_runs WHERE attempt > 0"
    )
    assert rows.fetchone() == (15, 15)


def test_an_incomplete_run_has_no_verdict_and_the_gate_stays_shut(project: Project) -> None:
    project.invoke("provision")
    with project.model(slow(0.3)) as model:
        project.invoke("sync", "--repeat", "50", "--concurrency", "1")
        process = project.start("run")
        assert eventually(lambda: len(model.asked) > 3)
        os.killpg(process.pid, signal.SIGINT)
        process.communicate()
        done = project.invoke("pull", "--json")
    assert (done.code, done.json["verdict"]) == (3, "none")
    assert done.json["reason"].startswith("incomplete:")
    connection = sqlite3.connect(Path(done.json["evidence"]) / "eval_runs.db")
    newest = "SELECT passed FROM eval_runs WHERE template_version = 'reply-v3' ORDER BY id DESC LIMIT 1"
    assert connection.execute(newest).fetchone() == (0,)


def test_stages_out_of_order_say_what_comes_first(project: Project) -> None:
    project.invoke("provision")
    environment = {"MODEL_URL": "http://127.0.0.1:9/"}
    for stage, words in (("run", "nothing was sent to the box"), ("pull", "nothing has run on the box")):
        done = project.invoke(stage, env=environment)
        assert (done.code, words in plain(done.errors)) == (2, True), done.errors
    assert len(project.boxes()) == 1


def test_two_boxes_need_a_name(project: Project) -> None:
    first, second = (project.invoke("provision", "--json").json["box"]["id"] for _ in range(2))
    done = project.invoke("teardown")
    assert done.code == 2
    assert first in done.errors
    assert second in done.errors
    assert project.invoke("teardown", "--box-id", first).code == 0
    assert [row["box_id"] for row in project.boxes()] == [second]


def test_a_void_run_stays_void_when_it_is_pulled(project: Project) -> None:
    made = project.invoke("provision", "--json").json["box"]
    with project.model(answer(200, DRAFT)):
        project.invoke("sync")
        (row,) = project.boxes()
        if row["isolation"] == "sealed":
            folder = Path(row["address"]["socket"]).parent / "home" / "run" / "run"
        else:
            folder = Path(row["address"]["directory"]) / "run"
        (folder / "SECRETS.txt").write_text("left by somebody")
        done = project.invoke("run")
        assert (done.code, "SECRETS.txt was not sent" in plain(done.errors)) == (3, True), done.errors
        pulled = project.invoke("pull", "--json")
    assert (pulled.code, pulled.json["verdict"]) == (3, "none")
    evidence = Path(row["evidence"])
    assert not (evidence / "eval_runs.db").exists()
    assert "SECRETS.txt" in (evidence / "teardown.json").read_text()
    assert made["id"] == row["box_id"]


def test_a_box_that_is_gone_is_not_up(project: Project) -> None:
    made = project.invoke("provision", "--json").json["box"]["id"]
    project.invoke("teardown")
    done = project.invoke("sync", "--box-id", made, env={"MODEL_URL": "http://127.0.0.1:9/"})
    assert (done.code, f"box {made} is not up: it is gone" in plain(done.errors)) == (2, True)
    assert "still up" not in done.output


def test_a_refused_sync_leaves_the_run_alone(project: Project) -> None:
    project.invoke("provision")
    with project.model(slow(0.3)) as model:
        project.invoke("sync", "--repeat", "4", "--concurrency", "1")
        process = project.start("run")
        assert eventually(lambda: len(model.asked) > 2)
        refused = project.invoke("sync")
        assert (refused.code, "a run is going on" in plain(refused.errors)) == (3, True), refused.errors
        output, errors = process.communicate()
        assert process.returncode == 0, output + errors
        assert project.invoke("pull").code == 0
