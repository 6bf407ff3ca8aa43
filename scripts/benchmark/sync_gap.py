"""Runs DIR as the runner does and prints, in seconds, how long a row waited for the disk at the most.

    python sync_gap.py DIR

A row is safe from a power cut when a sync of the log that began after its insert has ended.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from bisect import bisect_left
from datetime import datetime
from pathlib import Path
from typing import Any

from rehearsal.runner.loop import Events, run

_INSERT_S = 0.01  # `created_at` is taken just before the insert


def main(directory: Path) -> None:
    begun: list[float] = []
    ended: list[float] = []
    sync = os.fsync

    def noted(handle: Any) -> None:
        begun.append(time.time())
        sync(handle)
        ended.append(time.time())

    os.fsync = noted  # type: ignore[assignment]
    with Events(directory / "events.jsonl") as events:
        run(directory, events, url=os.environ["MODEL_URL"])
    begun.append(time.time())
    ended.append(time.time())  # closing the database writes and syncs all that is left
    query = "SELECT created_at FROM eval_runs WHERE attempt > 0"
    rows = sqlite3.connect(directory / "eval_runs.db").execute(query)
    times = [datetime.fromisoformat(row[0]).timestamp() for row in rows]
    print(max(ended[min(bisect_left(begun, at + _INSERT_S), len(begun) - 1)] - at for at in times))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
