"""eval_runs.db as it came from a box: read as untrusted bytes.

With the main file's digest unchanged, a planted `-wal` or `-journal` turned a FAILED into a PASSED (measured).
So the bytes are read once, hashed, checked, and opened from memory.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rehearsal.runner.errors import VoidRun
from rehearsal.runner.plan import Plan

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

    Raises VoidRun where the file is not what a snapshot is: one closed, whole SQLite file whose tables are tables.
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
    attempts = tuple(row for row in rows if row.attempt > 0)
    seals = [row for row in rows if row.attempt == 0 and row.fixture_id == "corpus"]
    return Artifact(hashlib.sha256(raw).hexdigest(), attempts, seals[0] if seals else None)


def _rows(connection: sqlite3.Connection, path: Path, plan: Plan) -> list[Row]:
    if connection.execute("PRAGMA integrity_check").fetchone()[0] != "ok":
        raise VoidRun(f"{path} is damaged")
    kinds = dict(connection.execute("SELECT name, type FROM sqlite_master WHERE name IN ('eval_runs', 'runs')"))
    if kinds != {"eval_runs": "table", "runs": "table"}:
        raise VoidRun(f"{path} does not hold the tables eval_runs and runs")
    others = connection.execute("SELECT count(*) FROM sqlite_master WHERE type IN ('view', 'trigger')").fetchone()[0]
    if others:
        raise VoidRun(f"{path} holds a view or a trigger, which no runner writes")
    query = f"SELECT {', '.join(_COLUMNS)} FROM eval_runs WHERE run_id = ? ORDER BY id"  # noqa: S608  (constants)
    return [_checked(Row(*values), path) for values in connection.execute(query, (plan.run_id,))]


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


def findings(row: Row) -> list[dict[str, str]]:
    """The row's findings; an empty list where they are not readable."""
    try:
        value = json.loads(row.findings_json)
    except ValueError:
        return []
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
