"""A consistent copy of eval_runs.db that can travel. It imports nothing heavy: the laptop waits for it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from rehearsal.runner.errors import BoxError


def snapshot(path: Path, target: Path) -> None:
    """Write a consistent copy of the database at `path` to `target`: one file, no WAL, no sidecars.

    `VACUUM INTO`, because a file copy loses what still sits in the `-wal` (measured). Raises BoxError where the
    copy fails its own integrity check.
    """
    target.unlink(missing_ok=True)
    source = sqlite3.connect(f"file:{path}?mode=rw", uri=True)
    try:
        source.execute("VACUUM INTO ?", (str(target),))
    except sqlite3.Error as error:
        raise BoxError(f"{path.name} can't be copied: {error}") from error
    finally:
        source.close()
    copy = sqlite3.connect(f"file:{target}?mode=ro&immutable=1", uri=True)
    try:
        found = copy.execute("PRAGMA integrity_check").fetchone()[0]
    finally:
        copy.close()
    if found != "ok":
        raise BoxError(f"the copy of {path.name} is damaged: {found}")
