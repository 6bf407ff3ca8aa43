"""eval_runs: every attempt a durable row, and one last row that seals a complete run.

The article's gate reads only the newest row of a template version. So the newest row has to be right at
every moment: a run opens with a row `unsealed` that has not passed and an id above all its attempts', and
only when every expected attempt is there does that row become `corpus`, with the verdict of the whole run.
A run that crashed in the middle therefore never looks green, not even to that three-line query.

Durability (measured, see scripts/bench): WAL with synchronous=NORMAL keeps every committed row through
kill -9; a thread syncs the log twice a second, so a power cut costs less than a second of rows.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType

from sqlite_utils import Database

from rehearsal.runner.completion import Completion
from rehearsal.runner.errors import BoxError, VoidRun
from rehearsal.runner.plan import Entry, Plan
from rehearsal.runner.verdict import PASS, Verdict, seal_findings, whole_verdict

DB_NAME = "eval_runs.db"
SYNC_SECONDS = 0.5

SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    run_id TEXT PRIMARY KEY,
    template_version TEXT NOT NULL,
    template_hash TEXT NOT NULL,
    corpus_hash TEXT NOT NULL,
    policy_hash TEXT NOT NULL,
    repeat INTEGER NOT NULL CHECK (repeat >= 1),
    expected INTEGER NOT NULL CHECK (expected >= 1),
    started_at TEXT NOT NULL,
    finished_at TEXT,
    outcome TEXT CHECK (outcome IN ('pass', 'fail', 'error'))
);
CREATE TABLE IF NOT EXISTS eval_runs (
    id INTEGER PRIMARY KEY,
    fixture_id TEXT NOT NULL,
    template_version TEXT NOT NULL,
    prompt_hash TEXT NOT NULL,
    passed INTEGER NOT NULL CHECK (passed IN (0, 1)),
    failure_reason TEXT,
    output_json TEXT,
    created_at TEXT NOT NULL,
    run_id TEXT NOT NULL REFERENCES runs (run_id),
    attempt INTEGER NOT NULL CHECK (attempt >= 0),
    outcome TEXT NOT NULL CHECK (outcome IN ('pass', 'fail', 'error')),
    findings_json TEXT NOT NULL,
    raw_reply TEXT,
    model TEXT,
    finish_reason TEXT,
    http_status INTEGER,
    retries INTEGER NOT NULL DEFAULT 0 CHECK (retries >= 0),
    latency_ms INTEGER CHECK (latency_ms >= 0),
    UNIQUE (run_id, fixture_id, attempt),
    CHECK (passed = (outcome = 'pass')),
    CHECK ((failure_reason IS NULL) = (outcome = 'pass'))
);
"""

_INSERT = """
INSERT INTO eval_runs (
    id, fixture_id, template_version, prompt_hash, passed, failure_reason, output_json, created_at,
    run_id, attempt, outcome, findings_json, raw_reply, model, finish_reason, http_status, retries, latency_ms
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


class Store:
    """The database of one run in one folder; a context manager. One writer at a time.

    Entering makes the tables and opens the run, or finds it where it was left. Raises BoxError where the disk
    is full or the file can't be written, VoidRun where the run there is another one's.
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        self._plan = plan
        self._path = path
        with _written(path.name), ExitStack() as opened:
            self._db = opened.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            Database(self._db).executescript(SCHEMA)
            self._next_id = self._open_run()
            opened.pop_all()
        self._stop = threading.Event()
        self._syncer = threading.Thread(target=self._sync_log, name="sync", daemon=True)

    def __enter__(self) -> Store:
        self._syncer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._syncer.join()
        self._db.close()

    def done(self) -> int:
        """How many attempts have a row."""
        query = "SELECT count(*) FROM eval_runs WHERE run_id = ? AND attempt > 0"
        return int(self._db.execute(query, (self._plan.run_id,)).fetchone()[0])

    def missing(self) -> Iterator[tuple[Entry, int]]:
        """The expected attempts that have no row yet."""
        if self.done() == 0:
            return self._plan.attempts()
        return ((entry, number) for entry, number in self._plan.attempts() if not self._has_row(entry.id, number))

    def insert(self, fixture_id: str, attempt: int, prompt_hash: str, completion: Completion, verdict: Verdict) -> None:
        """Write one attempt; when this returns, the row survives the process. BoxError where it can't be written."""
        row = (
            self._next_id,
            fixture_id,
            self._plan.template_version,
            prompt_hash,
            int(verdict.outcome == PASS),
            verdict.failure_reason,
            verdict.output_json,
            now(),
            self._plan.run_id,
            attempt,
            verdict.outcome,
            verdict.findings_json(),
            completion.raw_reply,
            completion.model,
            completion.finish_reason,
            completion.http_status,
            completion.retries,
            completion.latency_ms,
        )
        with _written(f"{fixture_id} attempt {attempt}: the row"):
            self._db.execute(_INSERT, row)
        self._next_id += 1

    def seal(self) -> str:
        """Turn the `unsealed` row into the run's own verdict, and return it; VoidRun unless every attempt is there."""
        run_id = self._plan.run_id
        if self.done() != self._plan.expected or next(self.missing(), None) is not None:
            raise VoidRun(f"run {run_id} has {self.done()} of {self._plan.expected} attempts and can't be sealed")
        # Grouped, and only what failed: a run of 20,000 passes must not need memory for each of them here.
        of_run = "FROM eval_runs WHERE run_id = ? AND attempt > 0"
        kinds = self._db.execute(
            f"SELECT outcome, failure_reason {of_run} GROUP BY outcome, failure_reason ORDER BY min(id)", (run_id,)
        )
        outcome, reason = whole_verdict(kinds)
        failed = self._db.execute(
            f"SELECT fixture_id, attempt, failure_reason {of_run} AND outcome != ? ORDER BY id", (run_id, PASS)
        )
        findings = seal_findings(failed)
        with _written("the seal"), _transaction(self._db):
            self._db.execute(
                "UPDATE eval_runs SET fixture_id = 'corpus', passed = ?, failure_reason = ?, outcome = ?,"
                " findings_json = ?, created_at = ? WHERE run_id = ? AND attempt = 0",
                (int(outcome == PASS), reason, outcome, findings, now(), run_id),
            )
            self._db.execute("UPDATE runs SET finished_at = ?, outcome = ? WHERE run_id = ?", (now(), outcome, run_id))
        return outcome

    def sealed(self) -> str | None:
        """The sealed run's outcome, None while it is not sealed."""
        row = self._db.execute("SELECT outcome FROM runs WHERE run_id = ?", (self._plan.run_id,)).fetchone()
        return None if row is None else row[0]

    def _has_row(self, fixture_id: str, attempt: int) -> bool:
        query = "SELECT 1 FROM eval_runs WHERE run_id = ? AND fixture_id = ? AND attempt = ?"
        return self._db.execute(query, (self._plan.run_id, fixture_id, attempt)).fetchone() is not None

    def _open_run(self) -> int:
        plan = self._plan
        base = int(self._db.execute("SELECT coalesce(max(id), 0) FROM eval_runs").fetchone()[0])
        found = self._db.execute("SELECT id FROM eval_runs WHERE run_id = ? AND attempt = 0", (plan.run_id,)).fetchone()
        if found is not None:
            query = "SELECT template_hash, corpus_hash, policy_hash, repeat, expected FROM runs WHERE run_id = ?"
            opened_for = self._db.execute(query, (plan.run_id,)).fetchone()
            if opened_for != (plan.template_hash, plan.corpus_hash, plan.policy_hash, plan.repeat, plan.expected):
                raise VoidRun(f"run {plan.run_id} was begun under another plan", hint="sync again")
            query = "SELECT max(id) FROM eval_runs WHERE run_id = ? AND attempt > 0"
            last = self._db.execute(query, (plan.run_id,)).fetchone()[0]
            return int(found[0]) - plan.expected if last is None else int(last) + 1
        with _transaction(self._db):
            self._db.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)",
                (
                    plan.run_id,
                    plan.template_version,
                    plan.template_hash,
                    plan.corpus_hash,
                    plan.policy_hash,
                    plan.repeat,
                    plan.expected,
                    now(),
                ),
            )
            self._db.execute(
                "INSERT INTO eval_runs (id, fixture_id, template_version, prompt_hash, passed, failure_reason,"
                " created_at, run_id, attempt, outcome, findings_json)"
                " VALUES (?, 'unsealed', ?, ?, 0, 'run_incomplete', ?, ?, 0, 'error', '[]')",
                (base + plan.expected + 1, plan.template_version, plan.template_hash, now(), plan.run_id),
            )
        return base + 1

    def _sync_log(self) -> None:
        log = self._path.with_name(self._path.name + "-wal")
        while not self._stop.wait(SYNC_SECONDS):
            try:
                handle = os.open(log, os.O_RDONLY)
            except FileNotFoundError:
                continue
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


@contextmanager
def _written(what: str) -> Iterator[None]:
    """What SQLite can't write is the box's fault."""
    try:
        yield
    except sqlite3.Error as error:
        raise BoxError(f"{what} can't be written: {error}") from error


def now() -> str:
    """The time in UTC, ISO 8601, to the microsecond."""
    return datetime.now(timezone.utc).isoformat()


class _transaction:  # noqa: N801  (used like a function)
    """BEGIN … COMMIT, or ROLLBACK where the block raises."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._db.execute("ROLLBACK" if kind else "COMMIT")
