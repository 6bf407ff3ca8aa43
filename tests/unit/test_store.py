from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rehearsal.evidence.artifact import newest
from rehearsal.runner.errors import BoxError, VoidRun
from rehearsal.runner.plan import Plan
from rehearsal.runner.store import DB_NAME, Store
from rehearsal.runner.wire import storable
from tests.unit.runs import BAD, GOOD, fill, judged, lay_out, replied, stored


def gate(folder: Path, template_version: str = "reply-v3") -> tuple[int, str | None] | None:
    """The article's query, on the database as it lies on the box at this moment."""
    with closing(sqlite3.connect(folder / DB_NAME)) as connection:
        return newest(connection, template_version)


def write(folder: Path, plan: Plan, *texts: str | None, seal: bool = True) -> None:
    completions = [replied(error="timeout") if text is None else replied(text) for text in texts]
    with Store(folder / DB_NAME, plan) as store:
        fill(store, folder, plan, completions)
        if seal:
            store.seal()


@pytest.mark.parametrize(
    ("replies", "says"),
    [
        ((GOOD, GOOD), (1, None)),
        ((BAD, GOOD), (0, "forbidden:refund has been issued")),
        (("", BAD), (0, "forbidden:refund has been issued")),
        ((None, ""), (0, "reply_empty")),
        ((None, GOOD), (0, "provider:timeout")),
        ((None, None), (0, "provider:timeout")),
    ],
)
def test_the_articles_gate_reads_the_verdict_of_the_whole_run(
    tmp_path: Path, replies: tuple[str | None, ...], says: tuple[int, str | None]
) -> None:
    write(tmp_path, lay_out(tmp_path), *replies)
    assert gate(tmp_path) == says


def test_the_articles_gate_is_shut_at_every_moment_before_the_seal(tmp_path: Path) -> None:
    plan = lay_out(tmp_path, 3, repeat=2)
    with Store(tmp_path / DB_NAME, plan) as store:
        for number in range(plan.expected):
            assert store.done() == number
            assert gate(tmp_path) == (0, "run_incomplete")
            with pytest.raises(VoidRun, match=f"{number} of 6 attempts"):
                store.seal()
            fill(store, tmp_path, plan, [replied()])
        assert gate(tmp_path) == (0, "run_incomplete")
        assert store.sealed() is None
        assert store.seal() == store.sealed() == "pass"
    assert gate(tmp_path) == (1, None)


def test_a_template_that_never_ran_has_no_row(tmp_path: Path) -> None:
    write(tmp_path, lay_out(tmp_path), GOOD, GOOD)
    assert gate(tmp_path, "reply-v2") is None


def test_the_newest_run_decides_even_when_an_older_one_ends_later(tmp_path: Path) -> None:
    first = lay_out(tmp_path, run_id="run-1")
    second = replace(first, run_id="run-2")
    write(tmp_path, first, GOOD, GOOD)
    assert gate(tmp_path) == (1, None)
    write(tmp_path, second, GOOD, seal=False)
    assert gate(tmp_path) == (0, "run_incomplete")
    write(tmp_path, replace(first, run_id="run-3"), GOOD, GOOD)
    write(tmp_path, second, BAD)
    assert gate(tmp_path) == (1, None)
    write(tmp_path, replace(first, run_id="run-4"), GOOD, BAD)
    assert gate(tmp_path) == (0, "forbidden:refund has been issued")


def test_a_seal_names_every_attempt_that_did_not_pass(tmp_path: Path) -> None:
    write(tmp_path, lay_out(tmp_path, 3), BAD, GOOD, None)
    with closing(sqlite3.connect(tmp_path / DB_NAME)) as connection:
        row = connection.execute("SELECT attempt, outcome, findings_json FROM eval_runs WHERE fixture_id = 'corpus'")
        attempt, outcome, findings = row.fetchone()
    assert (attempt, outcome) == (0, "fail")
    assert json.loads(findings) == [
        {"fixture_id": "T-1", "attempt": 1, "reason": "forbidden:refund has been issued"},
        {"fixture_id": "T-3", "attempt": 1, "reason": "provider:timeout"},
    ]


def test_a_run_goes_on_where_it_was_left_and_only_with_what_is_missing(tmp_path: Path) -> None:
    plan = lay_out(tmp_path, 3, repeat=2)
    write(tmp_path, plan, BAD, GOOD, seal=False)
    with Store(tmp_path / DB_NAME, plan) as store:
        assert [(entry.id, number) for entry, number in store.missing()] == [
            ("T-3", 1), ("T-1", 2), ("T-2", 2), ("T-3", 2),
        ]  # fmt: skip
    write(tmp_path, plan, GOOD, GOOD, GOOD, GOOD)
    assert gate(tmp_path) == (0, "forbidden:refund has been issued")


def test_one_attempt_has_one_row(tmp_path: Path) -> None:
    plan = lay_out(tmp_path)
    with Store(tmp_path / DB_NAME, plan) as store:
        first = next(store.missing())
        fill(store, tmp_path, plan, [replied(BAD)])
        store.missing = lambda: iter([first])  # type: ignore[method-assign]
        with pytest.raises(BoxError, match="T-1 attempt 1: the row can't be written: UNIQUE"):
            fill(store, tmp_path, plan, [replied(GOOD)])


def test_a_row_beyond_the_plan_keeps_the_run_from_its_seal(tmp_path: Path) -> None:
    plan = lay_out(tmp_path)
    write(tmp_path, plan, GOOD, GOOD, seal=False)
    with Store(tmp_path / DB_NAME, plan) as store:
        store._db.execute(
            "INSERT INTO eval_runs SELECT 99, 'T-9', template_version, prompt_hash, passed, failure_reason,"
            " output_json, created_at, run_id, attempt, outcome, findings_json, raw_reply, model, finish_reason,"
            " http_status, retries, latency_ms FROM eval_runs WHERE fixture_id = 'T-1'"
        )
        with pytest.raises(VoidRun, match="3 of 2"):
            store.seal()


@pytest.mark.parametrize("change", [{"template_hash": "0"}, {"corpus_hash": "0"}, {"policy_hash": "0"}, {"repeat": 2}])
def test_a_run_is_not_gone_on_with_under_another_plan(tmp_path: Path, change: dict[str, object]) -> None:
    plan = lay_out(tmp_path)
    write(tmp_path, plan, GOOD, seal=False)
    with pytest.raises(VoidRun, match="begun under another plan"):
        Store(tmp_path / DB_NAME, replace(plan, **change))


@pytest.mark.parametrize(
    "columns",
    ["passed = 2", "passed = 1", "outcome = 'maybe'", "failure_reason = NULL", "retries = -1", "attempt = -1"],
)
def test_the_table_itself_refuses_a_row_that_contradicts_itself(tmp_path: Path, columns: str) -> None:
    write(tmp_path, lay_out(tmp_path), BAD, BAD)
    with closing(sqlite3.connect(tmp_path / DB_NAME)) as connection, pytest.raises(sqlite3.IntegrityError):
        connection.execute(f"UPDATE eval_runs SET {columns} WHERE fixture_id = 'T-1'")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(st.text(st.characters(exclude_categories=())) | st.binary().map(storable))
def test_whatever_a_model_writes_comes_back_as_it_came(tmp_path: Path, text: str) -> None:
    text = storable(text)
    plan = lay_out(tmp_path, 1)
    (tmp_path / DB_NAME).unlink(missing_ok=True)
    pulled = stored(tmp_path, plan, [replied(text + "\0x", model="\0", finish_reason="stop")])
    with closing(sqlite3.connect(pulled)) as connection:
        query = "SELECT raw_reply, model FROM eval_runs WHERE attempt = 1"
        assert connection.execute(query).fetchone() == (text + "\0x", "\0")
    assert judged(tmp_path, plan, pulled).verdict == "red"


def test_half_surrogates_in_a_reply_are_stored_and_judged_again(tmp_path: Path) -> None:
    plan = lay_out(tmp_path)
    odd = GOOD.replace("Charged twice.", "\\ud83d and \\u0000")
    assert judged(tmp_path, plan, stored(tmp_path, plan, [replied(odd), replied(odd)])).verdict == "green"


FULL = """
import resource, sys
from pathlib import Path
from rehearsal.runner.errors import BoxError
from rehearsal.runner.store import DB_NAME, Store
from tests.unit.runs import GOOD, fill, lay_out, replied
folder = Path(sys.argv[1])
plan = lay_out(folder, 1, repeat=50)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
with Store(folder / DB_NAME, plan) as store:
    try:
        fill(store, folder, plan, [replied(GOOD + " " * 20_000)] * 50)
    except BoxError as error:
        print(error.message, store.done(), sep="\\n")
"""


def test_a_full_disk_is_the_boxes_fault_and_keeps_what_was_written(tmp_path: Path, repo: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, tmp_path], cwd=repo, capture_output=True, text=True, check=True)
    message, count = done.stdout.splitlines()
    assert "the row can't be written" in message
    with Store(tmp_path / DB_NAME, lay_out(tmp_path, 1, repeat=50)) as store:
        assert store.done() == int(count) > 0
    assert gate(tmp_path) == (0, "run_incomplete")


def test_a_place_that_can_not_be_written_is_the_boxes_fault(tmp_path: Path) -> None:
    plan = lay_out(tmp_path)
    with pytest.raises(BoxError, match=r"eval_runs\.db can't be written"):
        Store(tmp_path / "nowhere" / DB_NAME, plan)
    (tmp_path / DB_NAME).write_bytes(b"no database" * 100)
    with pytest.raises(BoxError, match=r"eval_runs\.db can't be written"):
        Store(tmp_path / DB_NAME, plan)


KILLED = """
import os, signal, sys
from pathlib import Path
from rehearsal.runner.store import DB_NAME, Store
from tests.unit.runs import fill, lay_out, replied
folder = Path(sys.argv[1])
plan = lay_out(folder, 40)
with Store(folder / DB_NAME, plan) as store:
    fill(store, folder, plan, [replied()] * 37)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_every_row_that_was_written_survives_kill_9(tmp_path: Path, repo: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], cwd=repo, check=False)
    assert done.returncode == -signal.SIGKILL
    assert os.path.getsize(tmp_path / f"{DB_NAME}-wal") > 0
    with Store(tmp_path / DB_NAME, lay_out(tmp_path, 40)) as store:
        assert store.done() == 37
