"""The laptop's own judgement of a run: nothing of the box's word is taken, all is computed again from raw replies."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rehearsal.evidence.artifact import Artifact, Row
from rehearsal.runner.completion import Completion
from rehearsal.runner.corpus import Fixture
from rehearsal.runner.errors import VoidRun
from rehearsal.runner.plan import Plan
from rehearsal.runner.template import Template
from rehearsal.runner.verdict import ERROR, FAIL, PASS, Finding, Verdict, judge, seal_findings, whole_verdict
from rehearsal.runner.wire import Reply, request_body

GREEN, RED, NONE = "green", "red", "none"
RUN_STARTED = "run"  # the line of the witness that is no call: somebody started, or went on with, the run


@dataclass(frozen=True)
class Counts:
    """Attempts: how many the plan expects, and how many passed, failed and were not measured."""

    expected: int
    passed: int
    failed: int
    errors: int

    @property
    def missing(self) -> int:
        """Expected attempts that have no row."""
        return self.expected - self.passed - self.failed - self.errors


@dataclass(frozen=True)
class FixtureResult:
    """What one fixture's attempts came to."""

    fixture_id: str
    passed: int
    attempts: int
    outcome: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Judgement:
    """The run as the laptop judges it. `verdict` is green, red or none; `reason` the gravest, or what is missing."""

    verdict: str
    reason: str | None
    counts: Counts
    fixtures: tuple[FixtureResult, ...]


def judge_again(
    artifact: Artifact,
    plan: Plan,
    template: Template,
    fixtures: Mapping[str, Fixture],
    witnessed: Counter[str] | None = None,
) -> Judgement:
    """Judge every stored reply again and hold the rows against the plan.

    Green is computed, never read: it is green exactly when every expected attempt is there once, and passed.
    `witnessed` counts what passed through the laptop's own relay, as `exchange_digest` names it; None where the box
    reached the model directly, and nobody else saw. Raises VoidRun where a row is not in the plan, says something
    else than this judgement, or passed with a reply that the model never gave to that prompt.
    """
    expected = {(entry.id, number) for entry, number in plan.attempts()}
    verdicts: dict[tuple[str, int], Verdict] = {}
    for row in artifact.attempts:
        key = (row.fixture_id, row.attempt)
        if key not in expected or key in verdicts:
            raise VoidRun(
                f"run {plan.run_id} has a row for {row.fixture_id} attempt {row.attempt}, which was not planned"
            )
        verdicts[key] = _again(row, fixtures[row.fixture_id], template)
    if witnessed is not None:
        _check_witness(artifact, plan, template, fixtures, witnessed)
    verdict, reason = _whole(verdicts, plan)
    _check_seal(artifact, plan, verdicts)
    outcomes = [found.outcome for found in verdicts.values()]
    counts = Counts(plan.expected, outcomes.count(PASS), outcomes.count(FAIL), outcomes.count(ERROR))
    results = tuple(_result(entry.id, plan.repeat, verdicts) for entry in plan.entries)
    return Judgement(verdict, reason, counts, results)


def exchange_digest(request: bytes, reply: Reply) -> str:
    """One call to the model: sha256 (hex) of the request's body, and of all that a row takes from the reply."""
    taken = json.dumps([reply.text, reply.finish_reason, reply.model])
    return f"{hashlib.sha256(request).hexdigest()} {hashlib.sha256(taken.encode()).hexdigest()}"


def _check_witness(
    artifact: Artifact, plan: Plan, template: Template, fixtures: Mapping[str, Fixture], witnessed: Counter[str]
) -> None:
    """Each reply that passed was given by the model to exactly that prompt; with a team's own seam, only as many."""
    passed = [row for row in artifact.attempts if row.outcome == PASS]
    if plan.seam is not None:
        if len(passed) > witnessed.total() - witnessed[RUN_STARTED]:
            raise VoidRun(
                f"run {plan.run_id} has {len(passed)} passes, and the model was asked {witnessed.total()} times"
            )
        return
    # A box that asks until it likes the answer has more calls than rows. What was under way when a run was stopped is
    # asked again by the next `run`: that many may be over.
    spare = max(0, witnessed[RUN_STARTED] - 1) * plan.concurrency
    calls = witnessed.total() - witnessed[RUN_STARTED]
    if len(passed) == plan.expected and calls > plan.expected + spare:
        raise VoidRun(f"run {plan.run_id} has {plan.expected} rows, and the model was asked {calls} times")
    left = Counter(witnessed)
    for row in passed:
        prompt = template.render(fixtures[row.fixture_id].ticket_body)
        reply = Reply(row.raw_reply or "", row.finish_reason, row.model)
        call = exchange_digest(request_body(prompt, template.settings), reply)
        left[call] -= 1
        if left[call] < 0:
            raise VoidRun(
                f"{row.fixture_id} attempt {row.attempt}: the model never gave this reply to this prompt",
                hint="do not believe this box; run it again on another one",
            )


def _again(row: Row, fixture: Fixture, template: Template) -> Verdict:
    error = None
    if row.outcome == ERROR:
        error = (row.failure_reason or "").removeprefix("provider:")
    completion = Completion(
        raw_reply=row.raw_reply,
        finish_reason=row.finish_reason,
        model=row.model,
        http_status=row.http_status,
        retries=row.retries,
        latency_ms=row.latency_ms or 0,
        error=error,
    )
    verdict = judge(fixture, completion, unwrap_fence=template.settings.unwrap_fence)
    same = (
        verdict.outcome == row.outcome
        and verdict.failure_reason == row.failure_reason
        and verdict.findings_json() == row.findings_json
        and verdict.output_json == row.output_json
        and (row.raw_reply is None) == (verdict.outcome == ERROR)
        and row.passed == int(verdict.outcome == PASS)
        and row.prompt_hash == template.prompt_hash(fixture.ticket_body)
        and row.template_version == template.version
    )
    if not same:
        raise VoidRun(
            f"{row.fixture_id} attempt {row.attempt}: the box says {row.outcome} ({row.failure_reason}), "
            f"the laptop judges {verdict.outcome} ({verdict.failure_reason})",
            hint="do not believe this box; run it again on another one",
        )
    return verdict


def _whole(verdicts: Mapping[tuple[str, int], Verdict], plan: Plan) -> tuple[str, str | None]:
    if len(verdicts) < plan.expected:
        return NONE, f"incomplete:{plan.expected - len(verdicts)}_of_{plan.expected}_attempts_missing"
    outcome, reason = whole_verdict((found.outcome, found.failure_reason) for found in verdicts.values())
    return {PASS: GREEN, FAIL: RED, ERROR: NONE}[outcome], reason


def _check_seal(artifact: Artifact, plan: Plan, verdicts: Mapping[tuple[str, int], Verdict]) -> None:
    complete = len(verdicts) == plan.expected
    seal = artifact.seal
    if complete and seal is None:
        raise VoidRun(f"run {plan.run_id} has every row and no seal")
    if seal is None:
        return
    outcome, reason = whole_verdict((found.outcome, found.failure_reason) for found in verdicts.values())
    if not complete or (seal.outcome, seal.failure_reason, seal.passed) != (
        outcome,
        reason,
        int(outcome == PASS),
    ):
        raise VoidRun(f"run {plan.run_id} is sealed as {seal.outcome}, and its rows say {outcome}")
    bad = ((*key, found.failure_reason) for key, found in verdicts.items() if found.outcome != PASS)
    if seal.findings_json != seal_findings(bad):
        raise VoidRun(f"run {plan.run_id}: its seal tells of other findings than its rows")


def _result(fixture_id: str, repeat: int, verdicts: Mapping[tuple[str, int], Verdict]) -> FixtureResult:
    found = [verdicts[key] for number in range(1, repeat + 1) if (key := (fixture_id, number)) in verdicts]
    bad = [verdict for verdict in found if verdict.outcome != PASS]
    worst = next((verdict for verdict in bad if verdict.outcome == FAIL), bad[0] if bad else None)
    outcome = worst.outcome if worst else (PASS if len(found) == repeat else ERROR)
    findings = worst.findings if worst else ()
    return FixtureResult(fixture_id, len(found) - len(bad), repeat, outcome, findings)
