"""The slice: preregister → provision → sync → run → pull → judge again → tear down → receipt, in one straight line."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rehearsal import stages, summary
from rehearsal.boxes.ledger import Ledger, Row, open_ledger
from rehearsal.console import Console
from rehearsal.evidence.judgement import NONE, Counts, Judgement
from rehearsal.preregistration import Prepared, laptop_secrets, prepare
from rehearsal.runner.errors import Failure, Interrupted, RehearsalError, TeardownIncomplete, UsageError
from rehearsal.settings import Model, Settings
from rehearsal.signals import Signals


@dataclass(frozen=True)
class Result:
    """What a rehearsal came to; `error` is what a person is told besides."""

    run_id: str | None
    verdict: str
    exit_code: int
    reason: str | None
    evidence: Path | None
    counts: Counts | None
    row: Row | None
    error: Failure | None

    def to_json(self) -> dict[str, Any]:
        """The one object that `--json` prints."""
        row = self.row
        return {
            "run_id": self.run_id,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "reason": self.reason,
            "evidence": None if self.evidence is None else str(self.evidence),
            "counts": None if self.counts is None else dict(self.counts.__dict__),
            "box": None if row is None else describe_box(row),
        }

    @classmethod
    def of(
        cls,
        judgement: Judgement | None,
        prepared: Prepared | None,
        row: Row | None,
        error: Failure | None,
    ) -> Result:
        """The result of what was reached: an error outweighs a verdict."""
        verdict = judgement.verdict if judgement is not None else NONE
        return cls(
            run_id=prepared.plan.run_id if prepared else None,
            verdict=verdict,
            exit_code=error.exit_code if error else summary.EXIT_CODES.get(verdict, 3),
            reason=error.message if error else (judgement.reason if judgement else None),
            evidence=prepared.evidence if prepared else None,
            counts=judgement.counts if judgement else None,
            row=row,
            error=error,
        )


def describe_box(row: Row) -> dict[str, str]:
    """A box as `--json` shows it."""
    return {"id": row.box_id, "driver": row.driver, "isolation": row.isolation, "state": row.state}


def show(judgement: Judgement, prepared: Prepared, console: Console) -> None:
    """The table and the last line."""
    console.table(summary.COLUMNS, summary.table(judgement), style_by=2)
    console.conclusion(judgement.verdict, summary.conclusion(judgement, prepared.plan, prepared.evidence))


class Rehearsal:
    """One rehearsal, and how far it got."""

    def __init__(self, settings: Settings, console: Console) -> None:
        self._settings = settings
        self._console = console
        self._ledger: Ledger | None = None
        self._prepared: Prepared | None = None
        self._row: Row | None = None
        self._session: stages.Session | None = None
        self._judgement: Judgement | None = None
        self._error: Failure | None = None

    def rehearse(self) -> Result:
        """The whole slice. Never raises a RehearsalError: the result carries it.

        Whatever happens after the box was asked for, it is torn down, or kept on purpose.
        """
        with Signals(self._console.line) as signals:
            try:
                try:
                    self._measure()
                finally:
                    signals.shield()
            except (RehearsalError, Interrupted) as error:  # also one raised just before the shield was up
                self._error = error
            finally:
                self._end()
        if signals.received is not None and self._error is None:
            self._error = Interrupted(f"interrupted by {signals.received.name}")
        return self._result()

    def _measure(self) -> None:
        settings, console = self._settings, self._console
        model = Model.from_environment(os.environ)
        secrets = laptop_secrets(model)
        stages.check(settings)
        with answering(model) as endpoint:
            self._prepared = prepared = prepare(settings, model, secrets)
            run_id = prepared.plan.run_id
            console.step(run_id, summary.opening(prepared.plan))
            self._ledger = ledger = open_ledger()
            self._row = stages.ask(settings, ledger)
            console.step(run_id, f"making the box {self._row.box_id} ({settings.box})")
            session = self._session = stages.provision(self._row, settings, ledger)
            with contextlib.closing(session):
                console.step(run_id, f"the box is up, {session.row.isolation}; sending the run")
                stages.sync(session, prepared, ledger)
                exposure = stages.run(session, endpoint(), ledger, console, secrets)
                stages.refuse_exposed(run_id, exposure)
                console.step(run_id, "pulling the rows and judging every reply again")
                self._judgement = stages.pull(session, ledger, secrets)

    def _end(self) -> None:
        if self._row is None or self._ledger is None:
            return
        self._row = self._session.row if self._session is not None else self._row
        run_id = self._prepared.plan.run_id if self._prepared else "no run"
        if self._settings.keep and self._row.python is not None and not isinstance(self._error, Interrupted):
            self._console.step(run_id, f"the box {self._row.box_id} is kept until {self._row.expires_at}")
            stages.receipt(self._row, self._ledger, left=(), state="kept")
            return
        self._console.step(run_id, f"tearing down the box {self._row.box_id}")
        seen = stages.tear_down(self._row, self._ledger)
        self._row = replace(self._row, state=seen.state)
        if seen.left:
            self._error = TeardownIncomplete(
                f"run {run_id}: something may be left: {'; '.join(seen.left)}",
                hint="`invoke cleanup` tries again; `invoke boxes` lists what is known",
            )

    def _result(self) -> Result:
        if self._judgement is not None and self._prepared is not None:
            show(self._judgement, self._prepared, self._console)
        return Result.of(self._judgement, self._prepared, self._row, self._error)


@contextlib.contextmanager
def answering(model: Model | None) -> Iterator[Callable[[], Model]]:
    """The model that will answer; without one, the lab model, starting while other work goes on."""
    if model is not None:
        yield lambda: model
        return
    from rehearsal import lab

    why = lab.unavailable()
    if why is not None:
        raise UsageError(f"there is no model: MODEL_URL is not set, and {why}", hint="export MODEL_URL=https://…")
    with contextlib.closing(lab.spawn()) as running:
        yield lambda: Model(running.endpoint().url)
