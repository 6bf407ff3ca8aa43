"""What is up, and ending all of it."""

from __future__ import annotations

import psutil

from rehearsal import stages
from rehearsal.boxes.ledger import GONE, Row, open_ledger
from rehearsal.console import Console
from rehearsal.runner.errors import TeardownIncomplete
from rehearsal.signals import Signals

COLUMNS = ("box", "kind", "isolation", "state", "run", "ends by itself")


def boxes(console: Console, *, everything: bool) -> int:
    """List the boxes that are not shown to be gone, or all that ever were."""
    rows = open_ledger().rows(alive_only=not everything)
    if rows:
        console.table(COLUMNS, [_shown(row) for row in rows])
    else:
        console.line("no box is up")
    console.result([row.to_json() for row in rows])
    return 0


def cleanup(console: Console, *, dry_run: bool) -> int:
    """Take every box that is not gone to gone, whatever became of the process that made it."""
    ledger = open_ledger()
    rows = ledger.rows(alive_only=True)
    left: list[str] = []
    with Signals(console.line) as signals:
        for row in rows:
            if dry_run:
                console.line(f"would end box {row.box_id} ({row.driver}, {row.state})")
                continue
            if signals.received is not None:
                left.append(f"box {row.box_id} was not reached")
                continue
            signals.shield()
            seen = stages.tear_down(row, ledger)
            left += seen.left
            if not seen.left:
                console.line(f"box {row.box_id} is gone")
    if not rows:
        console.line("nothing to clean up: no box is up")
    if left:
        raise TeardownIncomplete(
            f"something may be left: {'; '.join(left)}",
            hint="for a host that is off, its own timer ends the box; `invoke cleanup` looks again",
        )
    console.result({"exit_code": 0, "boxes": [ledger.row(row.box_id).to_json() for row in rows]})
    return 0


def _shown(row: Row) -> tuple[str, ...]:
    minutes = row.left_s // 60
    ends = f"in {minutes} min" if minutes >= 0 else "is overdue"
    if row.state == GONE:
        ends = "-"
    elif row.driver == "loopback" and not row.kept and not psutil.pid_exists(row.pid):
        ends = "has ended with its process: invoke cleanup"
    return (row.box_id, row.driver, row.isolation, row.state, row.run_id or "-", ends)
