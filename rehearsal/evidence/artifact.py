"""eval_runs.db as it came from a box: read as untrusted bytes.

With the main file's digest unchanged, a planted `-wal` or `-journal` turned a FAILED into a PASSED (measured).
So the bytes are read once, hashed, checked, and opened from memory.
"""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rehearsal.runner.errors import VoidRun
from rehearsal.runner.plan import Plan
from rehearsal.runner.store import SCHEMA

_COLUMNS = (
    "id",
    "fixture_id",
    "template_version",
    "prompt_hash",
    "passed",
    "failure_reason",
    "output_json",
    "created_at",
    "attempt",
    "outcome",
    "findings_json",
    "raw_reply",
    "model",
    "finish_reason",
    "http_status",
    "retries",
    "latency_ms",
)
_OPEN = ("unsealed", 0, "error", "run_incomplete")
_SIDECARS = ("-wal", "-shm", "-journal")
_MAGIC = b"SQLite format 3\0"
_NOT_WAL = b"\x01\x01"  # header bytes 18 and 19: the read and write versions of a rollback-journal file


@dataclass(frozen=True)
class Row:
    """One row of eval_runs, under the article's names."""

    id: int
    fixture_id: str
    template_version: str
    prompt_hash: str
    passed: int
    failure_reason: str | None
    output_json: str | None
    created_at: str
    attempt: int
    outcome: str
    findings_json: str
    raw_reply: str | None
    model: str | None
    finish_reason: str | None
    http_status: int | None
    retries: int
    latency_ms: int | None


@dataclass(frozen=True)
class Artifact:
    """The rows of one run: its attempts in the order they were written, and the seal (None where there is none)."""

    sha256: str
    attempts: tuple[Row, ...]
    seal: Row | None


def read(path: Path, plan: Plan) -> Artifact:
    """Read the run of `plan` from the database file at `path`.

    Raises VoidRun where the file is not what a snapshot is: one closed, whole SQLite file with the runner's own two
    tables, in which the newest row of the template, which the article's gate reads, is this run's seal.
    """
    for suffix in _SIDECARS:
        if path.with_name(path.name + suffix).exists():
            raise VoidRun(f"{path}{suffix} lies beside the database and could change what it says", hint="remove it")
    raw = path.read_bytes()
    if not raw.startswith(_MAGIC) or raw[18:20] != _NOT_WAL:
        raise VoidRun(f"{path} is not a closed SQLite database")
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(raw)
        connection.execute("PRAGMA query_only = ON")
        rows = _rows(connection, path, plan)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise VoidRun(f"{path} can't be read: {error}") from error
    finally:
        connection.close()
    attempts = tuple(row for row in rows if row.attempt != 0)
    (mark,) = (row for row in rows if row.attempt == 0)
    return Artifact(hashlib.sha256(raw).hexdigest(), attempts, mark if mark.fixture_id == "corpus" else None)


def _rows(connection: sqlite3.Connection, path: Path, plan: Plan) -> list[Row]:
    if connection.execute("PRAGMA integrity_check").fetchone()[0] != "ok":
        raise VoidRun(f"{path} is damaged")
    if _schema(connection) != _runners_schema():
        raise VoidRun(f"{path} holds something else than the two tables that the runner makes")
    foreign = "SELECT count(*) FROM eval_runs WHERE run_id IS NOT ? OR template_version IS NOT ?"
    runs = connection.execute("SELECT count(*) FROM runs").fetchone()[0]
    if runs != 1 or connection.execute(foreign, (plan.run_id, plan.template_version)).fetchone()[0]:
        raise VoidRun(f"{path} holds rows of another run or template than {plan.run_id} of {plan.template_version}")
    query = f"SELECT {', '.join(_COLUMNS)} FROM eval_runs WHERE run_id = ? ORDER BY id"  # noqa: S608  (constants)
    rows = [_checked(Row(*values), path) for values in connection.execute(query, (plan.run_id,))]
    _check_mark(connection, path, plan, [row for row in rows if row.attempt == 0])
    return rows


def _schema(connection: sqlite3.Connection) -> set[tuple[str, ...]]:
    return set(connection.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master"))


@cache
def _runners_schema() -> set[tuple[str, ...]]:
    """To the letter, so that no view, trigger, generated column, collation or missing CHECK can bend what is read."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        return _schema(connection)


def _check_mark(connection: sqlite3.Connection, path: Path, plan: Plan, marks: list[Row]) -> None:
    """The run's row that is no attempt (`unsealed` or `corpus`): the newest of its template, for the article's gate."""
    if len(marks) != 1:
        raise VoidRun(f"{path} does not hold the one row that opens or seals run {plan.run_id}")
    mark = marks[0]
    newest_id = connection.execute(
        "SELECT max(id) FROM eval_runs WHERE template_version = ?", (plan.template_version,)
    ).fetchone()[0]
    if mark.template_version != plan.template_version or mark.id != newest_id:
        raise VoidRun(f"{path} has rows that are newer than the seal of run {plan.run_id}")
    is_open = (mark.fixture_id, mark.passed, mark.outcome, mark.failure_reason) == _OPEN
    if mark.prompt_hash != plan.template_hash or not (is_open or mark.fixture_id == "corpus"):
        raise VoidRun(f"{path} seals run {plan.run_id} with a row that no runner writes")
    said = connection.execute(
        "SELECT template_version, template_hash, corpus_hash, policy_hash, repeat, expected, outcome"
        " FROM runs WHERE run_id = ?",
        (plan.run_id,),
    ).fetchone()
    digests = (plan.template_version, plan.template_hash, plan.corpus_hash, plan.policy_hash)
    if said != (*digests, plan.repeat, plan.expected, None if is_open else mark.outcome):
        raise VoidRun(f"{path} says of run {plan.run_id} something else than its plan or its seal")


_TEXTS = ("fixture_id", "template_version", "prompt_hash", "created_at", "outcome", "findings_json")
_WHOLE = ("id", "passed", "attempt", "retries")


def _checked(row: Row, path: Path) -> Row:
    """SQLite stores any type in any column; a row is only a row with the right ones."""
    values: dict[str, Any] = row.__dict__
    wrong = [key for key in _TEXTS if not isinstance(values[key], str)]
    wrong += [key for key in _WHOLE if not isinstance(values[key], int)]
    wrong += [
        key for key in ("raw_reply", "failure_reason", "finish_reason") if not isinstance(values[key], str | None)
    ]
    if wrong:
        raise VoidRun(f"{path} row {row.id}: {wrong[0]} has the wrong type")
    return row


def newest(connection: sqlite3.Connection, template_version: str) -> tuple[int, str | None] | None:
    """The article's gate, written anew: (passed, failure_reason) of the newest row of a template version, or None."""
    query = "SELECT passed, failure_reason FROM eval_runs WHERE template_version = ? ORDER BY id DESC LIMIT 1"
    found: tuple[int, str | None] | None = connection.execute(query, (template_version,)).fetchone()
    return found
