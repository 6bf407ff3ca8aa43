"""A database as a box could have made it: what is not exactly a runner's own work is not read."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rehearsal.evidence.artifact import newest, read
from rehearsal.runner.errors import VoidRun
from rehearsal.runner.plan import Plan
from rehearsal.runner.store import DB_NAME
from tests.unit.runs import BAD, GOOD, lay_out, replied, stored


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return lay_out(tmp_path)


@pytest.fixture
def red(tmp_path: Path, plan: Plan) -> Path:
    """The snapshot of a run that failed."""
    return stored(tmp_path, plan, [replied(BAD), replied(GOOD)])


def meddle(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def without_checks(path: Path) -> None:
    """The tables as they are, without a CHECK that would refuse a lie."""
    meddle(
        path,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = replace(sql, 'CHECK (passed IN (0, 1))', '') WHERE name = 'eval_runs'",
    )


def test_a_run_is_read_as_it_was_stored(plan: Plan, red: Path) -> None:
    found = read(red, plan)
    assert found.sha256 == hashlib.sha256(red.read_bytes()).hexdigest()
    assert [(row.fixture_id, row.attempt, row.passed, row.raw_reply) for row in found.attempts] == [
        ("T-1", 1, 0, BAD),
        ("T-2", 1, 1, GOOD),
    ]
    assert found.seal is not None
    assert (found.seal.passed, found.seal.failure_reason) == (0, "forbidden:refund has been issued")


def test_a_run_that_is_not_complete_has_no_seal(tmp_path: Path, plan: Plan) -> None:
    found = read(stored(tmp_path, plan, [replied()]), plan)
    assert (len(found.attempts), found.seal) == (1, None)


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_a_sidecar_is_refused(plan: Plan, red: Path, suffix: str) -> None:
    red.with_name(red.name + suffix).touch()
    with pytest.raises(VoidRun, match="lies beside the database"):
        read(red, plan)


def test_a_database_in_wal_mode_is_refused(tmp_path: Path, plan: Plan, red: Path) -> None:
    (tmp_path / "wal.db").write_bytes((tmp_path / DB_NAME).read_bytes())
    with pytest.raises(VoidRun, match="is not a closed SQLite database"):
        read(tmp_path / "wal.db", plan)


@pytest.mark.parametrize("keep", [0, 17, 99, 100, 4096, 6000])
def test_a_truncated_file_is_refused(plan: Plan, red: Path, keep: int) -> None:
    red.write_bytes(red.read_bytes()[:keep])
    with pytest.raises(VoidRun):
        read(red, plan)


def test_a_damaged_page_is_refused(plan: Plan, red: Path) -> None:
    raw = red.read_bytes()
    red.write_bytes(raw[:4096] + b"\xee" * 4096 + raw[8192:])
    with pytest.raises(VoidRun):
        read(red, plan)


@pytest.mark.parametrize(
    "statements",
    [
        ("ALTER TABLE eval_runs RENAME TO real_runs", "CREATE VIEW eval_runs AS SELECT * FROM real_runs"),
        ("CREATE TABLE other (a)",),
        ("CREATE VIEW other AS SELECT 1",),
        ("CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM eval_runs; END",),
        ("CREATE INDEX i ON eval_runs (passed)",),
        ("DROP TABLE runs",),
        ("ALTER TABLE eval_runs ADD COLUMN more TEXT",),
        ("ALTER TABLE eval_runs DROP COLUMN retries",),
    ],
)
def test_any_other_schema_is_refused(plan: Plan, red: Path, statements: tuple[str, ...]) -> None:
    meddle(red, *statements)
    with pytest.raises(VoidRun):
        read(red, plan)


def test_a_table_without_its_checks_is_refused(plan: Plan, red: Path) -> None:
    without_checks(red)
    with pytest.raises(VoidRun, match="something else than the two tables"):
        read(red, plan)


@pytest.mark.parametrize(
    "columns",
    ["raw_reply = x'00'", "output_json = 7, findings_json = x'00'", "retries = 'many'", "failure_reason = x'41'"],
)
def test_a_value_of_another_type_is_refused(plan: Plan, red: Path, columns: str) -> None:
    meddle(red, "PRAGMA ignore_check_constraints = ON", f"UPDATE eval_runs SET {columns} WHERE fixture_id = 'T-1'")
    with pytest.raises(VoidRun):
        read(red, plan)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE eval_runs SET id = 0 WHERE fixture_id = 'corpus'",
        "UPDATE eval_runs SET id = 99 WHERE fixture_id = 'T-2'",
        "UPDATE eval_runs SET template_version = 'reply-v2' WHERE fixture_id = 'corpus'",
        "UPDATE eval_runs SET prompt_hash = '0' WHERE fixture_id = 'corpus'",
        "UPDATE eval_runs SET fixture_id = 'unsealed' WHERE fixture_id = 'corpus'",
        "UPDATE eval_runs SET fixture_id = 'T-3' WHERE fixture_id = 'corpus'",
        "UPDATE eval_runs SET attempt = 9 WHERE fixture_id = 'corpus'",
        "DELETE FROM eval_runs WHERE fixture_id = 'corpus'",
        "DELETE FROM eval_runs",
        "DELETE FROM runs",
        "UPDATE runs SET outcome = 'pass'",
        "UPDATE runs SET outcome = NULL",
        "UPDATE runs SET expected = 1",
        "UPDATE runs SET template_hash = '0'",
        "UPDATE runs SET policy_hash = '0'",
    ],
)
def test_a_seal_that_is_missing_lying_or_older_than_its_rows(plan: Plan, red: Path, statement: str) -> None:
    meddle(red, statement)
    with pytest.raises(VoidRun):
        read(red, plan)


@pytest.mark.parametrize(("run_id", "attempt", "fixture_id"), [("run-2", 0, "corpus"), ("run-1", 0, "unsealed")])
def test_a_newer_row_that_would_open_the_articles_gate(
    plan: Plan, red: Path, run_id: str, attempt: int, fixture_id: str
) -> None:
    meddle(
        red,
        "INSERT INTO eval_runs (fixture_id, template_version, prompt_hash, passed, created_at, run_id, attempt,"
        f" outcome, findings_json) VALUES ('{fixture_id}', 'reply-v3', '', 1, '', '{run_id}', {attempt}, 'pass', '[]')",
    )
    with closing(sqlite3.connect(red)) as connection:
        assert newest(connection, "reply-v3") == (1, None), "the article's gate would be open"
    with pytest.raises(VoidRun):
        read(red, plan)


def test_the_run_of_another_plan_is_not_this_one(tmp_path: Path, red: Path) -> None:
    with pytest.raises(VoidRun):
        read(red, lay_out(tmp_path, run_id="run-2"))


def test_another_run_beside_it_is_refused(tmp_path: Path, plan: Plan, red: Path) -> None:
    later = lay_out(tmp_path, run_id="run-2")
    pulled = stored(tmp_path, later, [replied(), replied()])
    for run in (later, plan):
        with pytest.raises(VoidRun, match="rows of another run or template"):
            read(pulled, run)


def test_a_forged_green_of_another_template_is_refused(tmp_path: Path, plan: Plan, red: Path) -> None:
    with closing(sqlite3.connect(red)) as connection:
        connection.execute(
            "INSERT INTO eval_runs (fixture_id, template_version, prompt_hash, passed, created_at, run_id, attempt,"
            " outcome, findings_json) VALUES ('corpus', 'reply-v2', 'x', 1, 'now', 'forged', 0, 'pass', '[]')"
        )
        connection.commit()
    with pytest.raises(VoidRun, match="rows of another run or template"):
        read(red, plan)
