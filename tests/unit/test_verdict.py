from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rehearsal.runner import verdict
from rehearsal.runner.verdict import ERROR, FAIL, GRAVITY, PASS, judge, policy_hash, whole_verdict
from tests.unit.runs import BAD, GOOD, fixture, replied


def reply(**changes: Any) -> str:
    return json.dumps({**json.loads(GOOD), **changes})


def reasons(text: str, **changes: Any) -> tuple[str, ...]:
    found = judge(fixture(), replied(text, **changes))
    assert (found.outcome == PASS) == (not found.findings) == (found.failure_reason is None)
    return tuple(finding.reason for finding in found.findings)


def test_a_good_reply_passes_with_its_output() -> None:
    found = judge(fixture(), replied(GOOD))
    assert (found.outcome, found.findings, found.output) == (PASS, (), json.loads(GOOD))
    assert (found.output_json, found.findings_json()) == (GOOD, "[]")


@pytest.mark.parametrize(
    "value",
    [None, "", " \t", "\u200b\u3164", [], {}, [""], [None, {"a": "\u00ad"}]],
)
def test_a_required_key_that_shows_nothing_is_missing(value: Any) -> None:
    assert reasons(reply(summary=value)) == ("missing_key:summary",)


@pytest.mark.parametrize("value", [0, False, "0", [0], {"a": 1}])
def test_a_required_key_that_shows_something_is_there(value: Any) -> None:
    assert reasons(reply(summary=value)) == ()


def test_a_key_of_another_spelling_is_missing() -> None:
    assert reasons(GOOD.replace('"summary"', '"Summary"')) == ("missing_key:summary",)


@pytest.mark.parametrize("value", ["0.7", True, False, None, [0.5], {}])
def test_a_confidence_that_is_no_number(value: Any) -> None:
    assert "confidence_not_numeric" in reasons(reply(confidence=value))


@pytest.mark.parametrize("value", [-0.01, 1.0000001, 2, -15000, 10**400])
def test_a_confidence_out_of_range(value: Any) -> None:
    assert reasons(reply(confidence=value)) == ("confidence_out_of_range",)


def test_the_fixtures_own_range_counts() -> None:
    narrow = fixture(confidence_range=[0.2, 0.5])
    assert judge(narrow, replied(reply(confidence=0.5))).outcome == PASS
    assert judge(narrow, replied(reply(confidence=0.51))).failure_reason == "confidence_out_of_range"


def test_confidence_counts_even_where_no_key_is_required() -> None:
    assert judge(fixture(must_include_keys=[]), replied("{}")).failure_reason == "confidence_not_numeric"


@pytest.mark.parametrize(
    "text",
    [
        "Sure! " + GOOD,
        GOOD + GOOD,
        GOOD.replace("0.7", "NaN"),
        GOOD.replace("0.7", "Infinity"),
        GOOD.replace("0.7", "1e999"),
        GOOD.replace("0.7", "9" * 5000),
        GOOD.replace('"confidence"', '"summary": "again", "confidence"'),
        GOOD[:-1] + ",}",
        GOOD[:-1],
        "\ufeff" + GOOD,
        "```json\n" + GOOD + "\n```",
        "[" * 100_000,
    ],
)
def test_what_is_not_strict_json(text: str) -> None:
    assert reasons(text) == ("reply_not_json",)


@pytest.mark.parametrize("text", [f"[{GOOD}]", "null", "7", '"ok"', "true"])
def test_what_is_json_and_no_object(text: str) -> None:
    assert reasons(text) == ("reply_not_object",)


@pytest.mark.parametrize("text", ["", " \n", "\u200b\u200b"])
def test_an_empty_reply(text: str) -> None:
    assert reasons(text) == ("reply_empty",)


@pytest.mark.parametrize("finish", ["length", "content_filter", "missing", "tool_calls"])
def test_a_chat_reply_that_did_not_stop_by_itself(finish: str) -> None:
    assert reasons(GOOD, finish_reason=finish) == ("reply_truncated",)
    assert reasons(GOOD[:-5], finish_reason=finish) == ("reply_not_json", "reply_truncated")
    assert reasons(GOOD, finish_reason="stop") == ()


def test_a_reply_that_is_too_large_is_still_searched() -> None:
    assert reasons(GOOD, finish_reason="too_large") == ("reply_too_large",)
    found = reasons(BAD + " " * 99, finish_reason="too_large")
    assert found == ("forbidden:refund has been issued", "reply_too_large")


@pytest.mark.parametrize("text", ["Sorry, no JSON: your refund has been issued", f"[{BAD}]", BAD[:-3]])
def test_a_promise_is_found_whatever_the_shape(text: str) -> None:
    assert reasons(text)[0] == "forbidden:refund has been issued"
    assert len(reasons(text)) == 2


@pytest.mark.parametrize("kind", ["timeout", "connect", "http_502", "envelope", "seam_KeyError"])
def test_what_was_not_measured_is_an_error_and_no_fail(kind: str) -> None:
    found = judge(fixture(), replied(error=kind))
    assert (found.outcome, found.failure_reason, len(found.findings)) == (ERROR, f"provider:{kind}", 1)


def test_no_reply_is_an_error_even_without_a_kind() -> None:
    assert judge(fixture(), replied(None)).failure_reason == "provider:no_reply"


@pytest.mark.parametrize("text", [GOOD, BAD, "", "not json"])
def test_an_http_error_is_never_a_schema_miss_and_never_a_pass(text: str) -> None:
    found = judge(fixture(), replied(text, http_status=502))
    assert (found.outcome, found.failure_reason) == (ERROR, "provider:http_502")


def test_a_schema_miss_is_never_an_http_error() -> None:
    for text in ("", "x", "[]", "{}"):
        assert not [reason for reason in reasons(text, http_status=200) if reason.startswith("provider")]


def test_findings_come_the_gravest_first_with_place_and_words() -> None:
    text = json.dumps({"summary": "", "suggested_reply": "Your refund has been issued.", "confidence": 9})
    found = judge(fixture(must_include_keys=["a/b~c", "summary"]), replied(text, finish_reason="length"))
    assert [(f.reason, f.pointer) for f in found.findings] == [
        ("forbidden:refund has been issued", "/suggested_reply"),
        ("missing_key:a/b~c", "/a~1b~0c"),
        ("missing_key:summary", "/summary"),
        ("confidence_out_of_range", "/confidence"),
        ("reply_truncated", ""),
    ]
    assert found.findings[0].excerpt == "Your refund has been issued."
    assert json.loads(found.findings_json())[1] == {"reason": "missing_key:a/b~c", "pointer": "/a~1b~0c", "excerpt": ""}


def test_what_a_verdict_says_does_not_hang_on_the_version_of_python() -> None:
    """Box and laptop compare it to the letter, and each Python words a syntax error in its own way."""
    (grammar,) = judge(fixture(), replied('Sure! {"a": 1,}')).findings
    (rule,) = judge(fixture(), replied('{"a": 1, "a": 2}')).findings
    assert (grammar.excerpt, rule.excerpt) == ('Sure! {"a": 1,}', 'has the key "a" twice in one object')


@pytest.mark.parametrize(
    ("text", "unwrapped"),
    [
        (f"```json\n{GOOD}\n```", True),
        (f"\n```json\r\n{GOOD}```\n", True),
        (f"```\n{GOOD}\n```", False),
        (f"```json5\n{GOOD}\n```", False),
        (f"Here:\n```json\n{GOOD}\n```", False),
        (f"```json\n{GOOD}\n```\nOK?", False),
        (f"```json\n{GOOD}\n```\n```json\n{GOOD}\n```", False),
        (f"```json\n{GOOD}", False),
        ("```json", False),
    ],
)
def test_a_fence_is_unwrapped_only_whole_and_only_where_production_does_so(text: str, unwrapped: bool) -> None:
    assert judge(fixture(), replied(text, finish_reason="stop"), unwrap_fence=unwrapped).outcome != ERROR
    assert (judge(fixture(), replied(text), unwrap_fence=True).outcome == PASS) is unwrapped
    assert judge(fixture(), replied(text)).failure_reason == "reply_not_json"


def test_inside_a_fence_nothing_is_forgiven() -> None:
    text = f"```json\n{BAD}\n```"
    assert judge(fixture(), replied(text), unwrap_fence=True).failure_reason == "forbidden:refund has been issued"
    assert judge(fixture(), replied("```json\n```"), unwrap_fence=True).failure_reason == "reply_empty"


outcomes = st.lists(
    st.sampled_from([(PASS, None), (FAIL, "reply_empty"), (FAIL, "forbidden:x"), (ERROR, "provider:timeout")])
)


@given(outcomes)
def test_a_whole_run_passes_only_with_nothing_but_passes(attempts: list[tuple[str, str | None]]) -> None:
    outcome, reason = whole_verdict(attempts)
    kinds = {kind for kind, _ in attempts}
    assert (outcome == PASS) == (kinds == {PASS}) == (reason is None)
    assert (outcome == FAIL) == (FAIL in kinds)
    if outcome == FAIL:
        assert (reason == "forbidden:x") == ((FAIL, "forbidden:x") in attempts)


def test_nothing_at_all_is_no_pass() -> None:
    assert whole_verdict([]) == (ERROR, "no_attempts")


def test_every_word_of_gravity_is_one_that_a_verdict_can_say() -> None:
    said = {
        judge(fixture(), completion).failure_reason.partition(":")[0]  # type: ignore[union-attr]
        for completion in (
            replied(BAD),
            replied(reply(summary="")),
            replied(reply(confidence="x")),
            replied(reply(confidence=2)),
            replied("x"),
            replied("[]"),
            replied(GOOD, finish_reason="length"),
            replied(""),
            replied(GOOD, finish_reason="too_large"),
            replied(error="timeout"),
        )
    }
    assert said == set(GRAVITY)


def judging() -> set[str]:
    """The runner's modules that the verdict stands on, by following imports from it; and what reads a reply."""
    folder = Path(verdict.__file__).parent
    found: set[str] = set()
    waiting = ["verdict", "wire"]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rehearsal.runner"):
                _, _, module = (node.module or "").partition("rehearsal.runner.")
                waiting += [module] if module else [alias.name for alias in node.names]
    return found - {"completion", "errors"}  # values and words: they decide nothing


def test_the_policy_covers_the_code_that_judges_and_the_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    before = policy_hash()
    assert len({before, policy_hash(), policy_hash("ab"), policy_hash("cd")}) == 3
    whole = verdict._source
    for name in (f"{module}.py" for module in judging() - {"template"}):  # template_hash covers what it reads
        changed = {name: (whole(name) or b"") + b"\n"}
        monkeypatch.setattr(verdict, "_source", lambda file, changed=changed: changed.get(file) or whole(file))
        assert policy_hash() != before, f"a change of {name} would go unseen"
