"""A prompt fight: the stages one by one, on a box that is kept up: edit, sync, run, pull, look, again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rehearsal import stages, summary
from rehearsal.boxes.ledger import DESTROYING, GONE, LOST, Ledger, Row, open_ledger
from rehearsal.console import Console
from rehearsal.preregistration import Prepared, laptop_secrets, prepare
from rehearsal.rehearse import Result, answering, describe_box, show
from rehearsal.runner import plan as plans
from rehearsal.runner.errors import Interrupted, RehearsalError, TeardownIncomplete, UsageError
from rehearsal.settings import Model, Settings
from rehearsal.signals import Signals


def provision(settings: Settings, console: Console) -> int:
    """Make a box that stays up for `settings.ttl` seconds. Whatever stops it half-way, nothing is left."""
    ledger = open_ledger()
    laptop_secrets(None)
    with Signals(console.line) as signals:
        row = stages.ask(settings, ledger)
        try:
            stages.provision(row, settings, ledger).close()
        except BaseException:
            signals.shield()
            _end(row, ledger)
            raise
    row = ledger.row(row.box_id)
    console.line(f"box {row.box_id} is up ({row.driver}, {row.isolation}) until {row.expires_at}; next: invoke sync")
    console.result({"exit_code": 0, "box": describe_box(row)})
    return 0


def sync(settings: Settings, box_id: str | None, console: Console) -> int:
    """Preregister a new run of what lies in the folders now, and send it to the box."""
    ledger = open_ledger()
    model = Model.from_environment(os.environ)
    secrets = laptop_secrets(model)
    row = standing(ledger, box_id)
    with _staying_up(row, console):
        prepared = prepare(settings, model, secrets)
        console.step(prepared.plan.run_id, summary.opening(prepared.plan))
        with stages.connected(row) as session:
            stages.sync(session, prepared, ledger)
    console.step(prepared.plan.run_id, f"sent to the box {row.box_id}; next: invoke run")
    console.result({"exit_code": 0, "run_id": prepared.plan.run_id, "box": describe_box(ledger.row(row.box_id))})
    return 0


def run(box_id: str | None, console: Console) -> int:
    """Run what was synced, or go on with it; a verdict needs `pull`, for the box's own word counts for nothing."""
    ledger = open_ledger()
    model = Model.from_environment(os.environ)
    secrets = laptop_secrets(model)
    row = standing(ledger, box_id)
    if row.run_id is None:
        raise UsageError(f"nothing was sent to the box {row.box_id} yet", hint="invoke sync")
    with _staying_up(row, console), answering(model) as endpoint, stages.connected(row) as session:
        exposure = stages.run(session, endpoint(), ledger, console, secrets)
        stages.receipt(session.row, ledger, left=(), state="kept")
        stages.refuse_exposed(row.run_id, exposure)
    console.step(row.run_id, f"ran on the box {row.box_id}; next: invoke pull")
    console.result({"exit_code": 0, "run_id": row.run_id, "box": describe_box(ledger.row(row.box_id))})
    return 0


def pull(box_id: str | None, console: Console) -> int:
    """Fetch the rows of the last run and judge them here; the exit code is the verdict's."""
    ledger = open_ledger()
    secrets = laptop_secrets(Model.from_environment(os.environ))
    row = standing(ledger, box_id)
    if row.run_id is None or row.evidence is None or row.state == "synced":
        raise UsageError(f"nothing has run on the box {row.box_id} yet", hint="invoke sync, then invoke run")
    with _staying_up(row, console), stages.connected(row) as session:
        judgement = stages.pull(session, ledger, secrets)
    prepared = Prepared(plans.load(stages.inputs(row)), (), Path(row.evidence))
    show(judgement, prepared, console)
    result = Result.of(judgement, prepared, ledger.row(row.box_id), None)
    console.result(result.to_json())
    return result.exit_code


def teardown(box_id: str | None, console: Console) -> int:
    """End one box."""
    ledger = open_ledger()
    row = chosen(ledger, box_id)
    with Signals(console.line) as signals:
        signals.shield()
        _end(row, ledger)
    console.line(f"box {row.box_id} is gone")
    console.result({"exit_code": 0, "box": describe_box(ledger.row(row.box_id))})
    return 0


def chosen(ledger: Ledger, box_id: str | None, *, kept_only: bool = False) -> Row:
    """The box called `box_id`, or the only one that is up; UsageError where that is not one box."""
    if box_id is not None:
        return ledger.row(box_id)
    rows = [row for row in ledger.rows(alive_only=True) if row.kept or not kept_only]
    if not rows:
        raise UsageError("no box is kept up", hint="invoke provision makes one")
    if len(rows) > 1:
        have = ", ".join(row.box_id for row in rows)
        raise UsageError(f"{len(rows)} boxes are up, so which one is meant?", hint=f"add --box-id, one of: {have}")
    return rows[0]


def standing(ledger: Ledger, box_id: str | None) -> Row:
    """As `chosen`, for a stage that needs a kept box up; UsageError where it is gone, over, or a rehearsal's own."""
    row = chosen(ledger, box_id, kept_only=True)
    if not row.kept:
        raise UsageError(f"box {row.box_id} is a rehearsal's own", hint="invoke provision makes one to keep")
    if row.state in (GONE, LOST, DESTROYING) or row.python is None:
        raise UsageError(f"box {row.box_id} is not up: it is {row.state}", hint="invoke provision makes another one")
    if row.left_s <= 0:
        raise UsageError(f"the time of box {row.box_id} is over since {row.expires_at}", hint="invoke cleanup")
    return row


def _end(row: Row, ledger: Ledger) -> None:
    seen = stages.tear_down(row, ledger)
    if seen.left:
        raise TeardownIncomplete(f"something may be left: {'; '.join(seen.left)}", hint="`invoke cleanup` tries again")


@contextmanager
def _staying_up(row: Row, console: Console) -> Iterator[None]:
    """Whatever stops this stage, the box stays up, and the message says so."""
    with Signals(console.line):
        try:
            yield
        except (RehearsalError, Interrupted):
            console.line(f"the box {row.box_id} is still up, until {row.expires_at}; `invoke teardown` ends it")
            raise
