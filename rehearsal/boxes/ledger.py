"""Every box ever asked for, and how far its life got.

A state is written before the act that it names, so that whatever dies in the middle, the row says what may exist.
A row holds all that a tear-down needs.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from platformdirs import user_state_path
from sqlite_utils import Database
from sqlite_utils.db import NotFoundError

from rehearsal.boxes import Address, Record, Request
from rehearsal.runner.errors import RehearsalError, UsageError

GONE, LOST, DESTROYING = "gone", "lost", "destroying"
_ALWAYS = (DESTROYING,)

# A box's life. Every other move raises. A kept box goes round: synced → running → pulled → synced …
MOVES: dict[str, tuple[str, ...]] = {
    "intended": ("created", *_ALWAYS),
    "created": ("armed", *_ALWAYS),
    "armed": ("synced", *_ALWAYS),
    "synced": ("synced", "running", *_ALWAYS),
    "running": ("running", "pulled", "synced", *_ALWAYS),
    "pulled": ("synced", "running", "pulled", *_ALWAYS),
    DESTROYING: (GONE, LOST, *_ALWAYS),
    LOST: _ALWAYS,
    GONE: (),
}


@dataclass(frozen=True)
class Row:
    """One box. Times are UTC, ISO 8601. `pid` is the process that asked for it; `kept`: it may outlive that one."""

    box_id: str
    driver: str
    state: str
    target: str | None
    keys: str
    address: Address | None
    kept: bool
    pid: int
    created_at: str
    expires_at: str
    python: str | None
    run_id: str | None
    evidence: str | None

    @property
    def record(self) -> Record:
        """What a driver may know of it."""
        return Record(self.box_id, self.driver, Path(self.keys), self.target, self.address)

    @property
    def isolation(self) -> str:
        """'sealed' or 'not sealed', 'unknown' before it was made."""
        return self.address.isolation if self.address else "unknown"

    @property
    def left_s(self) -> int:
        """Seconds until it ends by itself; below 0 when that is over."""
        return round((datetime.fromisoformat(self.expires_at) - datetime.now(UTC)).total_seconds())

    def to_json(self) -> dict[str, Any]:
        """The row as `invoke boxes --json` shows it."""
        shown = {key: value for key, value in self.__dict__.items() if key not in ("address", "keys")}
        address = None if self.address is None else self.address.to_json()
        return {**shown, "isolation": self.isolation, "address": address}


class LedgerError(RehearsalError):
    """The ledger can't be read or written: locked, damaged, on a full disk."""


class Ledger:
    """The ledger in one SQLite file, shared by all processes of this user. Every method may raise LedgerError."""

    def __init__(self, path: Path) -> None:
        self.folder = path.parent
        self._path = path
        with self._readable():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            connection = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
            path.chmod(0o600)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            self._db = Database(connection)
            self._db.executescript(_SCHEMA)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValueError, KeyError, TypeError) as error:
            raise LedgerError(
                f"the ledger of boxes {self._path} can't be used: {error}",
                hint="it is the only list of what may be running: move it aside only after a look for boxes by hand",
            ) from error

    def intend(self, request: Request, driver: str) -> Row:
        """Write down that a box is about to be asked for."""
        now = datetime.now(UTC)
        with self._readable(), self._alone():
            self._db.table("boxes").insert(
                {
                    "box_id": request.box_id,
                    "driver": driver,
                    "state": "intended",
                    "target": request.target,
                    "keys": str(request.keys),
                    "kept": int(request.keep),
                    "pid": os.getpid(),
                    "created_at": now.isoformat(timespec="seconds"),
                    "expires_at": (now + timedelta(seconds=request.ttl_s)).isoformat(timespec="seconds"),
                }
            )
            self._log(request.box_id, "intended")
        return self.row(request.box_id)

    def move(self, box_id: str, state: str, **facts: Any) -> Row:
        """Write the next state, and facts that belong to it (`address`, `python`, `run_id`, `evidence`)."""
        if isinstance(facts.get("address"), Address):
            facts["address"] = json.dumps(facts["address"].to_json())
        with self._readable(), self._alone():
            before = self.row(box_id).state
            if state not in MOVES[before]:
                raise UsageError(
                    f"box {box_id} is {before} and can't become {state}",
                    hint=f"it can become: {', '.join(MOVES[before]) or 'nothing, it is gone'}",
                )
            self._db.table("boxes").update(box_id, {"state": state, **facts})
            self._log(box_id, state)
            return self.row(box_id)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One transaction, with the writer's lock from before its first look: no move overtakes another one."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def row(self, box_id: str) -> Row:
        """One box; UsageError where the ledger has none of that name."""
        with self._readable():
            try:
                return _row(self._db.table("boxes").get(box_id))
            except NotFoundError as error:
                raise UsageError(f"there is no box {box_id} in the ledger", hint="`invoke boxes` lists them") from error

    def rows(self, *, alive_only: bool = False) -> list[Row]:
        """All boxes, the oldest first; or only those that are not shown to be gone."""
        where = f"state != '{GONE}'" if alive_only else "1"
        with self._readable():
            found = self._db.table("boxes").rows_where(where, order_by="created_at, box_id")
            return [_row(values) for values in found]

    def history(self, box_id: str) -> list[tuple[str, str]]:
        """Every state of a box with its time (UTC, ISO 8601)."""
        with self._readable():
            rows = self._db.table("moves").rows_where("box_id = ?", [box_id], order_by="id")
            return [(row["state"], row["at"]) for row in rows]

    def _log(self, box_id: str, state: str) -> None:
        self._db.table("moves").insert({"box_id": box_id, "state": state, "at": datetime.now(UTC).isoformat()})


def open_ledger() -> Ledger:
    """This user's ledger, in the user's state folder (XDG_STATE_HOME on Linux)."""
    return Ledger(user_state_path("rehearsal") / "ledger.db")


_SCHEMA = """
CREATE TABLE IF NOT EXISTS boxes (
    box_id TEXT PRIMARY KEY, driver TEXT NOT NULL, state TEXT NOT NULL, target TEXT, keys TEXT NOT NULL, address TEXT,
    kept INTEGER NOT NULL, pid INTEGER NOT NULL, created_at TEXT NOT NULL, expires_at TEXT NOT NULL, python TEXT,
    run_id TEXT, evidence TEXT
);
CREATE TABLE IF NOT EXISTS moves (
    id INTEGER PRIMARY KEY, box_id TEXT NOT NULL REFERENCES boxes (box_id), state TEXT NOT NULL, at TEXT NOT NULL
);
"""


def _row(values: dict[str, Any]) -> Row:
    address = values["address"]
    parsed = None if address is None else Address.from_json(json.loads(address))
    return Row(**{**values, "address": parsed, "kept": bool(values["kept"])})
