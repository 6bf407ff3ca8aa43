"""A consistent copy of eval_runs.db that can travel. It imports nothing heavy: the laptop waits for it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from rehearsal.runner.errors import BoxError


def snapshot(path: Path, target: Path) -> None:
    """Write a consistent copy of the database at `path` to `target`: one file, no WAL, no sidecars.

    `VACUUM INTO`, because a file copy loses what still sits in the `-wal` (measured). Raises BoxError where the
    copy fails its own integrity check.
    """
    target.unlink(missing_ok=True)
    try:
        with closing(_open(path, "mode=rw")) as source:
            source.execute("VACUUM INTO ?", (str(target),))
        with closing(_open(target, "mode=ro&immutable=1")) as copy:
            found = copy.execute("PRAGMA integrity_check").fetchone()[0]
    except sqlite3.Error as error:
        raise BoxError(f"{path.name} can't be copied: {error}") from error
    if found != "ok":
        raise BoxError(f"the copy of {path.name} is damaged: {found}")


def _open(path: Path, options: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?{options}", uri=True)
