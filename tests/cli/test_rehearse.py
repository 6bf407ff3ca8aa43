"""What a person types and sees: `invoke rehearse` and every exit code, through real subprocesses."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.evidence.artifact import newest
from tests.cli.project import INVOKE, Project, eventually, finish, plain, reply, slow
from tests.contract.misbehaving import DRAFT, answer, endless, hang_up, in_turn

GREEN, RED, USAGE, NO_VERDICT, LEFT, INTERRUPTED = 0, 1, 2, 3, 4, 130
# Starts a program as the one that a terminal belongs to, so that closing the terminal hangs it up.
LOG_IN = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "os.execv(sys.argv[1], sys.argv[1:])"
)
PROMISE = "Good news: a refund has been issued to your card."


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def gate(evidence: Path) -> tuple[int, str | None] | None:
    """The article's gate, on the pulled database."""
    connection = sqlite3.connect(f"file:{evidence / 'eval_runs.db'}?mode=ro", uri=True)
    try:
        return newest(connection, "reply-v3")
    finally:
        connection.close()


def traces(project: Project) -> list[str]:
    """Processes that still name this project's state folder or temporary boxes of the ledger."""
    ids = [row["box_id"] for row in project.boxes("--all")]
    lines = subprocess.run(["ps", "-A", "-o", "args="], capture_output=True, text=True, check=True).stdout.splitlines()
    found = [line for line in lines if any(box_id in line for box_id in ids)]
    return found + [str(path) for box_id in ids for path in Path("/tmp").glob(f"*{box_id}*")]


def test_green(project: Project) -> None:
    with project.model(answer(200, DRAFT)) as model:
        done = project.invoke("rehearse", "--json")
    said = done.json
    assert (done.code, said["verdict"], said["exit_code"], said["reason"]) == (GREEN, "green", 0, None)
    assert said["counts"] == {"expected": 3, "passed": 3, "failed": 0, "errors": 0}
    assert said["box"]["driver"] == "loopback"
    assert said["box"]["state"] == "gone"
    assert {path.name for path in done.evidence.iterdir()} == {"plan.json", "eval_runs.db", "teardown.json"}
    assert gate(done.evidence) == (1, None)
    assert done.receipt["state"] == "gone"
    assert done.receipt["exposure"]["environment"] == ["HOME", "LANG", "MODEL_URL", "PATH"]
    assert done.receipt["exposure"]["beyond_the_allow_list"] == []
    assert len(model.asked) == 3
    assert project.boxes() == []
    assert traces(project) == []


def test_every_line_says_which_run_and_which_fixture(project: Project) -> None:
    with project.model(answer(200, DRAFT)):
        done = project.invoke("rehearse")
    run_id = re.search(r"\d{8}T\d{6}Z-[0-9a-f]{6}", done.output)
    assert run_id
    for name in ("T-1-charged-twice", "T-2-lawyer", "T-3-where-is-it"):
        assert f"{run_id[0]} {name} attempt 1: pass" in plain(done.output)
        assert re.search(rf"{name} +1 of 1 +pass", done.output)
    assert done.output.splitlines()[-1].startswith(f"GREEN: run {run_id[0]}, reply-v3: 3 of 3 attempts passed.")
    assert done.errors == ""


def test_red_shows_the_words_in_their_sentence(project: Project) -> None:
    with project.model(answer(200, reply(suggested_reply=PROMISE))):
        done = project.invoke("rehearse")
    assert done.code == RED
    assert "forbidden:refund has been issued" in plain(done.output)
    assert "a refund has been issued to your card" in plain(done.output)
    assert done.output.splitlines()[-1].startswith("RED: run")
    evidence = Path(done.output.rsplit("Evidence: ", 1)[1].strip())
    assert gate(evidence) == (0, "forbidden:refund has been issued")


def test_an_error_is_no_pass_and_no_fail(project: Project) -> None:
    with project.model(answer(500, DRAFT)):
        done = project.invoke("rehearse", "--json")
    said = done.json
    assert (done.code, said["verdict"], said["reason"]) == (NO_VERDICT, "none", "provider:http_500")
    assert said["counts"] == {"expected": 3, "passed": 0, "failed": 0, "errors": 3}
    assert gate(done.evidence) == (0, "provider:http_500")


def test_a_failure_outweighs_an_error(project: Project) -> None:
    with project.model(in_turn(answer(500, b""), answer(200, reply(suggested_reply=PROMISE)))):
        done = project.invoke("rehearse", "--json", "--concurrency", "1")
    assert (done.code, done.json["verdict"]) == (RED, "red")


def test_repeats_are_rows(project: Project) -> None:
    with project.model(answer(200, DRAFT)):
        done = project.invoke("rehearse", "--json", "--repeat", "4")
    assert done.json["counts"]["expected"] == 12
    rows = sqlite3.connect(done.evidence / "eval_runs.db").execute(
        "SELECT fixture_id, count(*) FROM eval_runs WHERE attempt > 0 GROUP BY fixture_id"
    )
    assert sorted(rows) == [("T-1-charged-twice", 4), ("T-2-lawyer", 4), ("T-3-where-is-it", 4)]


@pytest.mark.parametrize("how", ["no files", "only other templates"])
def test_an_empty_corpus_is_red(project: Project, how: str) -> None:
    for path in (project.folder / "fixtures").iterdir():
        path.unlink()
    if how != "no files":
        project.fixture("T-9", template_version="reply-v2")
    done = project.invoke("rehearse", "--json", env={"MODEL_URL": "http://127.0.0.1:9/"})
    assert done.code == RED
    assert done.json["verdict"] == "none"
    assert "an empty corpus is red" in plain(done.errors)
    assert project.boxes("--all") == []


USAGE_ERRORS = {
    "unknown flag": (["rehearse", "--nope"], "No idea what '--nope' is"),
    "unknown task": (["rehears"], "No idea what 'rehears' is"),
    "repeat": (["rehearse", "--repeat", "0"], "--repeat must be a whole number from 1 to 1000, not '0'"),
    "ttl": (["rehearse", "--ttl", "soon"], "--ttl must be a whole number"),
    "box": (["rehearse", "--box", "cloud"], "there is no kind of box called 'cloud'"),
    "host without box": (["rehearse", "--host", "me@there"], "--host is for the box `host`"),
    "box without host": (["rehearse", "--box", "host"], "the box `host` needs a machine"),
    "option as host": (["rehearse", "--box", "host", "--host=-oProxyCommand=id"], "is not user@name[:port]"),
    "template": (["rehearse", "--template", "reply-v9"], "reply-v9.txt: does not exist"),
    "fixtures": (["rehearse", "--fixtures", "nowhere"], "nowhere: is not a folder"),
    "box id": (["teardown", "--box-id", "box-0"], "there is no box box-0"),
    "no box": (["sync"], "no box is kept up"),
    "port": (["lab", "--port", "x"], "--port must be a whole number"),
}


@pytest.mark.parametrize("name", USAGE_ERRORS)
def test_usage(project: Project, name: str) -> None:
    arguments, words = USAGE_ERRORS[name]
    done = project.invoke(*arguments, env={"MODEL_URL": "http://127.0.0.1:9/"})
    assert (done.code, words in plain(done.errors)) == (USAGE, True), done.errors
    assert "Traceback" not in done.errors
    assert "hint: " in done.errors or "must be" in done.errors or "does not" in done.errors or "is not" in done.errors
    assert project.boxes() == []


def test_every_issue_of_every_file_at_once(project: Project) -> None:
    project.fixture("T-1-charged-twice", forbidden_substrings=[], colour="red")
    project.fixture("T-2-lawyer", id="T-3-where-is-it")
    (project.folder / "fixtures" / "broken.json").write_text('{"id": NaN}')
    done = project.invoke("rehearse", env={"MODEL_URL": "http://127.0.0.1:9/"})
    assert done.code == USAGE
    for words in (
        "T-1-charged-twice.json#/forbidden_substrings: forbids nothing",
        "T-1-charged-twice.json#/colour: is not a key of a fixture",
        "broken.json: is not strict JSON",
        "'T-3-where-is-it' is also the id in",
    ):
        assert words in plain(done.errors)


def test_a_wrong_url_is_named_without_its_password(project: Project) -> None:
    done = project.invoke("rehearse", env={"MODEL_URL": "ftp://me:hunter2hunter2@there/"})
    assert done.code == USAGE
    assert "MODEL_URL is not a URL" in done.errors
    assert "hunter2" not in done.errors + done.output


def test_a_secret_in_a_fixture_never_travels(project: Project) -> None:
    project.fixture("T-2-lawyer", ticket_body="my key is AKIAABCDEFGHIJKLMNOP ok?")
    done = project.invoke("rehearse", env={"MODEL_URL": "http://127.0.0.1:9/"})
    assert done.code == USAGE
    assert "T-2-lawyer.json: line 1 holds what looks like an AWS access key" in plain(done.errors)
    assert "AKIA" not in done.errors
    assert project.boxes("--all") == []


def test_the_key_stays_on_the_laptop(project: Project) -> None:
    key = "sk-test-0123456789"
    with project.model(answer(200, DRAFT)) as model:
        done = project.invoke("rehearse", "--json", env={"MODEL_KEY": key})
    assert done.code == GREEN
    assert {asked.headers["authorization"] for asked in model.asked} == {f"Bearer {key}"}
    for path in done.evidence.iterdir():
        assert key.encode() not in path.read_bytes()


def test_a_model_that_repeats_a_secret_of_the_laptop_voids_the_run(project: Project) -> None:
    with project.model(answer(200, reply(suggested_reply="the password is correct-horse-1"))):
        done = project.invoke("rehearse", "--json", env={"BILLING_PASSWORD": "correct-horse-1"})
    assert (done.code, done.json["verdict"]) == (NO_VERDICT, "none")
    assert "holds the value of BILLING_PASSWORD" in plain(done.errors)
    assert "correct-horse" not in done.errors + done.output
    assert {path.name for path in done.evidence.iterdir()} == {"plan.json", "teardown.json"}


def test_a_model_that_is_not_there(project: Project) -> None:
    with project.model(hang_up):
        done = project.invoke("rehearse", "--json", timeout=60)
    assert done.code == NO_VERDICT
    assert done.json["counts"]["errors"] == 3


def test_a_model_that_never_ends(project: Project) -> None:
    with project.model(endless):
        done = project.invoke("rehearse", "--json", timeout=60)
    assert (done.code, done.json["reason"]) == (RED, "reply_too_large")


def test_nothing_of_a_reply_steers_the_terminal(project: Project) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J a refund has been issued \u202e\x9b31m"
    with project.model(answer(200, reply(suggested_reply=hostile))):
        done = project.invoke("rehearse")
    assert done.code == RED
    assert "refund has been issued" in done.output
    assert not set("\x1b\x07\x9b\u202e") & set(done.output + done.errors)


def test_a_terminal_gets_a_progress_bar(project: Project) -> None:
    with project.model(slow(0.3)):
        seen = on_a_terminal(project, "rehearse", "--concurrency", "1")
    assert re.search(r"attempts .*3/3", plain(seen)) or "2/3" in plain(seen)
    assert "GREEN" in seen
    assert "\x1b[" in seen


def test_no_color(project: Project) -> None:
    with project.model(answer(200, DRAFT)):
        seen = on_a_terminal(project, "rehearse", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", seen)


def on_a_terminal(project: Project, *arguments: str, **environment: str) -> str:
    """What a person sees who runs `invoke` on a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [str(INVOKE), *arguments],
        cwd=project.folder,
        env={**os.environ, **project.environment, "TERM": "xterm-256color", **environment},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            block = os.read(ours, 65536)
        except OSError:  # Linux: the other end has closed
            break
        if not block:
            break
        seen += block
    os.close(ours)
    process.wait()
    return seen.decode(errors="replace")


@pytest.fixture
def long_run(project: Project) -> Iterator[subprocess.Popen[str]]:
    """A rehearsal that is in the middle of its attempts."""
    with project.model(slow(0.5)) as model:
        process = project.start("rehearse", "--json", "--repeat", "100", "--concurrency", "1")
        assert eventually(lambda: len(model.asked) > 2)
        yield process
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_tears_down_first(project: Project, long_run: subprocess.Popen[str], number: signal.Signals) -> None:
    os.killpg(long_run.pid, number)
    done = finish(long_run, 30)
    assert (done.code, done.json["exit_code"]) == (INTERRUPTED, INTERRUPTED)
    assert done.json["box"]["state"] == "gone"
    assert f"interrupted by {number.name}" in done.errors
    assert project.boxes() == []
    assert traces(project) == []


def test_a_second_interrupt_does_not_tear_the_tear_down_apart(
    project: Project, long_run: subprocess.Popen[str]
) -> None:
    for _ in range(3):
        os.killpg(long_run.pid, signal.SIGINT)
        time.sleep(0.03)
    done = finish(long_run, 30)
    assert done.code == INTERRUPTED
    assert project.boxes() == []
    assert traces(project) == []


def test_kill_9_and_cleanup_leave_nothing(project: Project, long_run: subprocess.Popen[str]) -> None:
    long_run.kill()
    long_run.communicate()
    (row,) = project.boxes()
    assert row["state"] == "running"
    dry = project.invoke("cleanup", "--dry-run")
    assert (dry.code, f"would end box {row['box_id']}" in dry.output) == (GREEN, True)
    assert len(project.boxes()) == 1
    done = project.invoke("cleanup")
    assert (done.code, f"box {row['box_id']} is gone" in done.output) == (GREEN, True)
    assert project.boxes() == []
    assert traces(project) == []
    again = project.invoke("cleanup")
    assert (again.code, "nothing to clean up" in again.output) == (GREEN, True)


def test_keep_says_until_when(project: Project) -> None:
    with project.model(answer(200, DRAFT)):
        done = project.invoke("rehearse", "--json", "--keep", "--ttl", "300")
    assert done.code == GREEN
    (row,) = project.boxes()
    assert f"the box {row['box_id']} is kept until {row['expires_at']}" in plain(done.errors)
    assert done.receipt["state"] == "kept"
    assert project.invoke("teardown").code == GREEN
    assert project.boxes() == []
    assert done.receipt["state"] == "gone"


def test_a_traceback_only_with_debug(project: Project) -> None:
    plainly = project.invoke("rehearse", "--template", "nope")
    debugging = project.invoke("--debug", "rehearse", "--template", "nope")
    assert "Traceback" not in plainly.errors
    assert "Traceback" in debugging.errors
    assert (plainly.code, debugging.code) == (USAGE, USAGE)


@pytest.mark.parametrize(
    "text", ["rehearsal: [1, 2]", "rehearsal: foo", "- a", "a: [", "rehearsal: {repeat: [1]}", "rehearsal: {nope: 1}"]
)
def test_a_configuration_that_is_none_is_a_usage_error(project: Project, text: str) -> None:
    (project.folder / "invoke.yaml").write_text(text)
    done = project.invoke("rehearse", "--json", env={"MODEL_URL": "http://127.0.0.1:9/"})
    assert (done.code, done.json["exit_code"]) == (USAGE, USAGE), done.errors
    assert "Traceback" not in done.errors


def test_a_terminal_that_is_closed_is_no_reason_to_leave_the_box_up(project: Project) -> None:
    with project.model(slow(0.5)) as model:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-c", LOG_IN, str(INVOKE), "rehearse", "--repeat", "100", "--concurrency", "1"],
            cwd=project.folder,
            env={**os.environ, **project.environment},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        assert eventually(lambda: len(model.asked) > 2)
        os.close(ours)
        assert process.wait(30) == INTERRUPTED
    assert project.boxes() == []
    assert traces(project) == []


def test_a_reader_that_goes_away_changes_nothing(project: Project) -> None:
    with project.model(answer(200, DRAFT)):
        process = project.start("rehearse")
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == GREEN
    assert project.boxes() == []
    process.stderr.close() if process.stderr else None


def test_a_locked_ledger_is_no_reason_to_leave_the_box_up(project: Project) -> None:
    with project.model(slow(0.5)) as model:
        process = project.start("rehearse", "--json", "--repeat", "100", "--concurrency", "1")
        assert eventually(lambda: len(model.asked) > 2)
        ledger = Path(os.environ["XDG_STATE_HOME"], "rehearsal", "ledger.db")
        with contextlib.closing(sqlite3.connect(ledger, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            process.send_signal(signal.SIGINT)
            done = finish(process, 90)
    assert done.code == LEFT
    assert "the ledger of boxes" in done.errors
    assert done.json["box"]["state"] == "gone"
    assert project.invoke("cleanup").code == GREEN
    assert traces(project) == []


def test_a_teams_own_seam_is_sent_and_asked(project: Project) -> None:
    (project.folder / "seam.py").write_text(
        "import json, os, urllib.request\n\n"
        "def ask(prompt):\n"
        "    body = json.dumps({'prompt': prompt}).encode()\n"
        "    request = urllib.request.Request(os.environ['MODEL_URL'], body, {'Content-Type': 'application/json'})\n"
        "    with urllib.request.urlopen(request) as reply:\n"
        "        return json.loads(reply.read())\n"
    )
    project.configure(seam="seam.py:ask")
    with project.model(answer(200, DRAFT)) as model:
        done = project.invoke("rehearse", "--json")
    assert (done.code, done.json["verdict"]) == (GREEN, "green"), done.errors
    assert len(model.asked) == 3
    assert json.loads((done.evidence / "plan.json").read_text())["seam"]["function"] == "ask"
