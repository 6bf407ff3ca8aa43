from __future__ import annotations

import hashlib
import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rehearsal.evidence.artifact import newest, read
from rehearsal.evidence.judgement import RUN_STARTED, Judgement, exchange_digest, judge_again
from rehearsal.runner.errors import VoidRun
from rehearsal.runner.plan import Plan, Seam
from rehearsal.runner.verdict import policy_hash
from rehearsal.runner.wire import Reply, request_body
from tests.unit.runs import BAD, GOOD, judged, lay_out, loaded, replied, stored

completions = st.sampled_from(
    [
        *[replied(GOOD)] * 4,
        replied(BAD),
        replied(""),
        replied("Sure! {"),
        replied('{"a": 1, "a": 2}'),
        replied("[]"),
        replied(GOOD.replace("0.7", "7")),
        replied(f"```json\n{GOOD}\n```"),
        replied(GOOD, finish_reason="length"),
        replied("x" * 70_000, finish_reason="too_large"),
        replied(GOOD.replace("Charged", "\\ud800 Charged")),
        replied(error="timeout", http_status=None),
        replied(error="http_502", http_status=502),
    ]
)


@settings(max_examples=40, deadline=None)
@given(st.lists(completions, min_size=4, max_size=4), st.integers(0, 4), st.booleans())
def test_what_the_store_wrote_the_laptop_judges_alike(replies: list, count: int, unwrap: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = lay_out(folder, 2, repeat=2, api="plain", unwrap_fence=unwrap)
        pulled = stored(folder, plan, replies[:count])
        found = judged(folder, plan, pulled)
        with closing(sqlite3.connect(pulled)) as connection:
            passed, reason = newest(connection, "reply-v3") or (None, None)
    assert found.counts.missing == 4 - count
    assert (found.verdict == "green") == (passed == 1) == (found.counts.passed == found.counts.expected)
    assert found.reason == (reason if count == 4 else f"incomplete:{4 - count}_of_4_attempts_missing")
    assert sum(result.passed for result in found.fixtures) == found.counts.passed
    assert (found.verdict == "red") == (count == 4 and found.counts.failed > 0)
    assert all((result.outcome == "pass") == (result.passed == 2) for result in found.fixtures)


def test_one_pass_and_one_crash_is_no_hundred_percent(tmp_path: Path) -> None:
    plan = lay_out(tmp_path)
    found = judged(tmp_path, plan, stored(tmp_path, plan, [replied(), replied(error="connect")]))
    assert (found.verdict, found.reason) == ("none", "provider:connect")
    assert (found.counts.passed, found.counts.errors, found.counts.expected) == (1, 1, 2)


def test_one_bad_attempt_of_many_is_red_and_shown(tmp_path: Path) -> None:
    plan = lay_out(tmp_path, 1, repeat=4)
    replies = [replied(), replied(error="timeout"), replied(BAD), replied()]
    found = judged(tmp_path, plan, stored(tmp_path, plan, replies))
    (result,) = found.fixtures
    assert (found.verdict, result.outcome, result.passed, result.attempts) == ("red", "fail", 2, 4)
    assert result.findings[0].excerpt == "Your refund has been issued."


LIES = [
    # every column that the article's gate or a person would believe
    "passed = 1, outcome = 'pass', failure_reason = NULL, findings_json = '[]'",
    "outcome = 'error'",
    "outcome = 'error', failure_reason = 'provider:timeout'",
    """outcome = 'error', failure_reason = 'provider:timeout', output_json = NULL,
       findings_json = '[{"reason": "provider:timeout", "pointer": "", "excerpt": ""}]'""",
    "failure_reason = 'reply_empty'",
    "findings_json = '[]'",
    "findings_json = replace(findings_json, 'issued.', 'refused')",
    "prompt_hash = 'other'",
    "template_version = 'reply-v2'",
    "output_json = NULL",
    "output_json = replace(output_json, 'refund', 'nothing')",
    "raw_reply = NULL",
    "raw_reply = replace(raw_reply, 'refund', 'nothing')",
    "finish_reason = 'length'",
    "http_status = 500",
    "fixture_id = 'T-9'",
    "fixture_id = 'T-2', attempt = 2",
    "attempt = 2",
]


@pytest.mark.parametrize("lie", LIES)
def test_a_box_that_says_something_else_than_its_replies_voids_the_run(tmp_path: Path, lie: str) -> None:
    plan = lay_out(tmp_path)
    pulled = stored(tmp_path, plan, [replied(BAD), replied(GOOD)])
    with closing(sqlite3.connect(pulled)) as connection, connection:
        assert connection.execute(f"UPDATE eval_runs SET {lie} WHERE fixture_id = 'T-1'").rowcount == 1
    with pytest.raises(VoidRun):
        judged(tmp_path, plan, pulled)


@pytest.mark.parametrize(
    "lie",
    [
        "passed = 1, outcome = 'pass', failure_reason = NULL, findings_json = '[]'",
        "outcome = 'error'",
        "failure_reason = 'reply_empty'",
        "findings_json = '[]'",
    ],
)
def test_a_seal_that_says_something_else_than_its_rows_voids_the_run(tmp_path: Path, lie: str) -> None:
    plan = lay_out(tmp_path)
    pulled = stored(tmp_path, plan, [replied(BAD), replied(GOOD)])
    with closing(sqlite3.connect(pulled)) as connection, connection:
        connection.execute(f"UPDATE eval_runs SET {lie} WHERE attempt = 0")
        connection.execute("UPDATE runs SET outcome = (SELECT outcome FROM eval_runs WHERE attempt = 0)")
    with pytest.raises(VoidRun, match="seal"):
        judged(tmp_path, plan, pulled)


def test_a_seal_on_a_run_that_is_not_complete_voids_it(tmp_path: Path) -> None:
    plan = lay_out(tmp_path)
    pulled = stored(tmp_path, plan, [replied(), replied()])
    with closing(sqlite3.connect(pulled)) as connection, connection:
        connection.execute("DELETE FROM eval_runs WHERE fixture_id = 'T-2'")
    with pytest.raises(VoidRun, match="is sealed as pass"):
        judged(tmp_path, plan, pulled)


def test_the_prompt_of_every_row_is_the_laptops_own(tmp_path: Path) -> None:
    plan = lay_out(tmp_path)
    pulled = stored(tmp_path, plan, [replied(), replied()])
    assert judged(tmp_path, plan, pulled).verdict == "green"
    with closing(sqlite3.connect(pulled)) as connection, connection:
        connection.execute("UPDATE eval_runs SET prompt_hash = 'x' WHERE attempt = 1")
    with pytest.raises(VoidRun, match="attempt 1"):
        judged(tmp_path, plan, pulled)


def seen_by_the_relay(folder: Path, plan: Plan, *replies: str) -> Counter[str]:
    """What the relay noted where the model gave these replies to the fixtures' prompts, one after the other."""
    template, fixtures = loaded(folder, plan)
    bodies = [
        request_body(template.render(fixtures[entry.id].ticket_body), template.settings) for entry, _ in plan.attempts()
    ]
    return Counter(exchange_digest(body, Reply(reply)) for body, reply in zip(bodies, replies, strict=False))


def judged_by(folder: Path, plan: Plan, witnessed: Counter[str]) -> Judgement:
    pulled = stored(folder, plan, [replied(), replied()])
    return judge_again(read(pulled, plan), plan, *loaded(folder, plan), witnessed)


def test_replies_that_the_relay_saw_are_believed(tmp_path: Path) -> None:
    plan = lay_out(tmp_path)
    assert judged_by(tmp_path, plan, seen_by_the_relay(tmp_path, plan, GOOD, GOOD)).verdict == "green"


@pytest.mark.parametrize("given", [(), (GOOD,), (GOOD, GOOD + " "), (GOOD, BAD)])
def test_a_reply_that_the_model_never_gave_to_this_prompt_voids_the_run(tmp_path: Path, given: tuple[str, ...]) -> None:
    plan = lay_out(tmp_path)
    with pytest.raises(VoidRun, match=r"T-[12] attempt 1: the model never gave"):
        judged_by(tmp_path, plan, seen_by_the_relay(tmp_path, plan, *given))


def test_a_reply_to_another_prompt_does_not_count(tmp_path: Path) -> None:
    plan = lay_out(tmp_path)
    harmless = exchange_digest(b'{"prompt": "say something harmless"}', Reply(GOOD))
    with pytest.raises(VoidRun, match="the model never gave this reply to this prompt"):
        judged_by(tmp_path, plan, Counter({harmless: 2}))


def test_with_a_seam_there_are_no_more_passes_than_calls(tmp_path: Path) -> None:
    seam = tmp_path / "seam.py"
    seam.write_text("def ask(prompt): ...\n")
    digest = hashlib.sha256(seam.read_bytes()).hexdigest()
    plan = replace(lay_out(tmp_path), seam=Seam("seam.py", "ask", digest), policy_hash=policy_hash(digest))
    (tmp_path / "plan.json").write_text(plan.to_json())
    with pytest.raises(VoidRun, match="has 2 passes, and the model was asked 1 times"):
        judged_by(tmp_path, plan, Counter({"any call": 1}))
    (tmp_path / "eval_runs.db").unlink()
    assert judged_by(tmp_path, plan, Counter({"any call": 2})).verdict == "green"


def test_a_reply_over_the_cap_is_too_large_whoever_says_otherwise(tmp_path: Path) -> None:
    plan = lay_out(tmp_path, 1)
    padded = GOOD[:-1] + " " * (1 << 20) + "}"
    found = judged(tmp_path, plan, stored(tmp_path, plan, [replied(padded)]))
    assert (found.verdict, found.reason) == ("red", "reply_too_large")


def test_a_finish_reason_that_the_model_never_gave_voids_the_run(tmp_path: Path) -> None:
    plan = lay_out(tmp_path, api="openai-chat")
    cut = seen_by_the_relay(tmp_path, plan)
    template, fixtures = loaded(tmp_path, plan)
    for entry, _ in plan.attempts():
        body = request_body(template.render(fixtures[entry.id].ticket_body), template.settings)
        cut[exchange_digest(body, Reply(GOOD, "length", "m"))] += 1
    pulled = stored(tmp_path, plan, [replied(finish_reason="stop", model="m")] * 2)
    with pytest.raises(VoidRun, match="the model never gave this reply"):
        judge_again(read(pulled, plan), plan, *loaded(tmp_path, plan), cut)


def test_asking_until_the_answer_pleases_voids_the_run(tmp_path: Path) -> None:
    plan = lay_out(tmp_path)
    asked = seen_by_the_relay(tmp_path, plan, GOOD, GOOD)
    template, fixtures = loaded(tmp_path, plan)
    body = request_body(template.render(fixtures["T-1"].ticket_body), template.settings)
    more = asked + Counter({exchange_digest(body, Reply(BAD)): 1, RUN_STARTED: 1})
    with pytest.raises(VoidRun, match="has 2 rows, and the model was asked 3 times"):
        judged_by(tmp_path, plan, more)
    (tmp_path / "eval_runs.db").unlink()
    assert judged_by(tmp_path, plan, more + Counter({RUN_STARTED: 1})).verdict == "green", "one was under way at a stop"
