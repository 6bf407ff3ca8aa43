from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rehearsal.runner.errors import InvalidInput, VoidRun
from rehearsal.runner.plan import Entry, Plan, Seam, load, read_fixture, verify
from tests.unit.runs import lay_out

words = st.text(min_size=1, max_size=12)
plans = st.builds(
    Plan,
    run_id=words,
    created_at=words,
    template_version=words,
    template_hash=words,
    settings=st.dictionaries(words, st.booleans() | st.integers() | words, max_size=3),
    corpus_hash=words,
    entries=st.lists(st.builds(Entry, words, words, words), min_size=1, max_size=4).map(tuple),
    set_aside=st.integers(0, 9),
    policy_hash=words,
    repeat=st.integers(1, 5),
    concurrency=st.integers(1, 64),
    endpoint=words,
    seam=st.none() | st.builds(Seam, words, words, words),
)


@given(plans)
def test_a_plan_survives_its_file(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan


@given(plans)
def test_the_attempts_are_fixtures_times_repeat(plan: Plan) -> None:
    attempts = list(plan.attempts())
    assert len(attempts) == plan.expected == len(plan.entries) * plan.repeat
    assert {number for _, number in attempts} == set(range(1, plan.repeat + 1))


@pytest.mark.parametrize(
    "change",
    [
        {"plan_version": 2},
        {"expected": 1},
        {"repeat": 0, "expected": 0},
        {"repeat": "2"},
        {"corpus": {}},
        {"seam": {"file": "x.py"}},
    ],
)
def test_what_is_no_plan_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    value = json.loads(lay_out(tmp_path).to_json())
    with pytest.raises(InvalidInput, match="is not a plan"):
        Plan.from_json(json.dumps({**value, **change}))


@pytest.mark.parametrize("text", ["", "[]", "null", '{"plan_version": 1, "plan_version": 1}'])
def test_what_is_not_even_an_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a plan"):
        Plan.from_json(text)


def test_the_folder_that_was_planned_verifies(tmp_path: Path) -> None:
    plan = lay_out(tmp_path, 3, api="openai-chat", unwrap_fence=True)
    assert verify(load(tmp_path), tmp_path).settings.unwrap_fence
    assert [read_fixture(entry, tmp_path).id for entry in plan.entries] == ["T-1", "T-2", "T-3"]


@pytest.mark.parametrize(
    ("file", "content", "what"),
    [
        ("fixtures/T-1.json", b"{}", "the fixture T-1"),
        ("fixtures/T-1.json", None, "the fixture T-1"),
        ("fixtures/T-9.json", b"{}", "fixtures/ holds 3 files"),
        ("prompts/reply-v3.txt", b"Anything: {{ticket_body}}", "the template"),
        ("prompts/reply-v3.txt", b"\xff", "the template"),
        ("prompts/reply-v3.txt", None, "the template"),
        ("prompts/reply-v3.toml", b"", "the template"),
    ],
)
def test_any_change_after_the_plan_voids_the_run(tmp_path: Path, file: str, content: bytes | None, what: str) -> None:
    plan = lay_out(tmp_path)
    (tmp_path / file).unlink() if content is None else (tmp_path / file).write_bytes(content)
    with pytest.raises(VoidRun, match=what):
        verify(plan, tmp_path)


@pytest.mark.parametrize("field", ["template_hash", "corpus_hash", "policy_hash"])
def test_any_digest_of_the_plan_is_checked(tmp_path: Path, field: str) -> None:
    with pytest.raises(VoidRun, match="is not what the plan says"):
        verify(replace(lay_out(tmp_path), **{field: "0" * 64}), tmp_path)


def test_a_fixture_that_changes_during_the_run_voids_it(tmp_path: Path) -> None:
    plan = lay_out(tmp_path)
    (tmp_path / "fixtures/T-1.json").write_bytes(b"{}")
    with pytest.raises(VoidRun, match="T-1"):
        read_fixture(plan.entries[0], tmp_path)
