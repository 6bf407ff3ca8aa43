"""What a run came to, in words: the table's rows and the last line. Pure."""

from __future__ import annotations

from pathlib import Path

from rehearsal.evidence.judgement import GREEN, NONE, RED, FixtureResult, Judgement
from rehearsal.runner.plan import Plan

COLUMNS = ("fixture", "attempts", "verdict", "reason")
MOST_REASONS = 4  # of one fixture, in the table; the database has all
EXIT_CODES = {GREEN: 0, RED: 1}  # anything else is 3: no verdict


def opening(plan: Plan) -> str:
    """The first line: what will be run."""
    times = f" × {plan.repeat}" if plan.repeat > 1 else ""
    aside = f" ({plan.set_aside} of other templates set aside)" if plan.set_aside else ""
    return f"{plan.template_version}: {_fixtures(len(plan.entries))}{times}{aside}, model {plan.endpoint}"


def _fixtures(count: int) -> str:
    return f"{count} fixture{'' if count == 1 else 's'}"


def table(judgement: Judgement) -> list[tuple[str, str, str, str]]:
    """A row for each fixture; the reason shows the offending words in their sentence."""
    return [
        (result.fixture_id, f"{result.passed} of {result.attempts}", result.outcome, _reasons(result))
        for result in judgement.fixtures
    ]


def conclusion(judgement: Judgement, plan: Plan, evidence: Path) -> str:
    """The last line: verdict, what was rehearsed, counts, where the evidence lies."""
    counts = judgement.counts
    verdict = "NO VERDICT" if judgement.verdict == NONE else judgement.verdict.upper()
    head = f"{verdict}: run {plan.run_id}, {plan.template_version}"
    parts = [f"{counts.passed} of {counts.expected} attempts passed"]
    parts += [f"{counts.failed} failed"] if counts.failed else []
    parts += [f"{counts.errors} not measured"] if counts.errors else []
    parts += [f"{counts.missing} missing"] if counts.missing else []
    parts += [f"{_fixtures(plan.set_aside)} of other templates set aside"] if plan.set_aside else []
    return f"{head}: {', '.join(parts)}. Evidence: {evidence}"


def _reasons(result: FixtureResult) -> str:
    shown = [
        f"{finding.reason} in “{finding.excerpt}”" if finding.excerpt else finding.reason
        for finding in result.findings[:MOST_REASONS]
    ]
    more = len(result.findings) - len(shown)
    return "; ".join([*shown, *([f"and {more} more"] if more > 0 else [])])
