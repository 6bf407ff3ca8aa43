from __future__ import annotations

from pathlib import Path

import pytest

from rehearsal import summary
from rehearsal.evidence.judgement import Counts, FixtureResult, Judgement
from rehearsal.runner.verdict import Finding
from tests.unit.runs import lay_out

WHERE = Path("/evidence/run-1")


def judgement(verdict: str, counts: tuple[int, int, int, int], *results: FixtureResult) -> Judgement:
    return Judgement(verdict, None, Counts(*counts), results)


@pytest.mark.parametrize(
    ("verdict", "counts", "line"),
    [
        ("green", (4, 4, 0, 0), "GREEN: run run-1, reply-v3: 4 of 4 attempts passed. Evidence: /evidence/run-1"),
        ("red", (4, 1, 2, 1), "RED: run run-1, reply-v3: 1 of 4 attempts passed, 2 failed, 1 not measured. Evidence:"),
        ("none", (4, 1, 0, 1), "NO VERDICT: run run-1, reply-v3: 1 of 4 attempts passed, 1 not measured, 2 missing."),
    ],
)
def test_the_last_line(tmp_path: Path, verdict: str, counts: tuple[int, int, int, int], line: str) -> None:
    assert summary.conclusion(judgement(verdict, counts), lay_out(tmp_path), WHERE).startswith(line)


def test_what_was_set_aside_is_said_first_and_last(tmp_path: Path) -> None:
    lay_out(tmp_path)
    other = (tmp_path / "fixtures" / "T-1.json").read_text().replace("reply-v3", "reply-v2").replace("T-1", "T-9")
    (tmp_path / "fixtures" / "T-9.json").write_text(other)
    plan = lay_out(tmp_path, repeat=3)
    opening = summary.opening(plan)
    assert opening == "reply-v3: 2 fixtures × 3 (1 of other templates set aside), model http://127.0.0.1/v1/reply"
    last = summary.conclusion(judgement("green", (6, 6, 0, 0)), plan, WHERE)
    assert "1 fixture of other templates set aside" in last


def test_the_reason_shows_the_offending_words_in_their_sentence_and_how_many_more() -> None:
    findings = (Finding("forbidden:x", "/a", "we did x today"), *[Finding(f"missing_key:{n}") for n in range(5)])
    (row,) = summary.table(judgement("red", (1, 0, 1, 0), FixtureResult("T-1", 0, 1, "fail", findings)))
    assert row[:3] == ("T-1", "0 of 1", "fail")
    assert row[3].startswith("forbidden:x in “we did x today”; missing_key:0; ")
    assert row[3].endswith("and 2 more")


def test_only_green_is_0_and_only_red_is_1() -> None:
    assert summary.EXIT_CODES == {"green": 0, "red": 1}
