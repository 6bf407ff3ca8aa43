from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rehearsal.runner.strict_json import MAX_DEPTH, MAX_DIGITS, NotStrictJson, parse

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30)


@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_valid_documents_read_as_json_reads_them(value: object, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert parse(text) == json.loads(text) == value


@given(st.text(alphabet='[]{}",:\\ 0123eE-.truefalsnNaIity\n'))
def test_nothing_is_read_that_json_refuses_or_reads_otherwise(text: str) -> None:
    try:
        value = parse(text)
    except NotStrictJson:
        return
    assert value == json.loads(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "line 1 column 1"),
        ("\ufeff{}", "byte order mark"),
        ("NaN", "NaN"),
        ("[-Infinity]", "-Infinity"),
        ('{"a": 1e999}', "1e999"),
        ("-1e999", "too large"),
        ('{"a": 1, "b": {"c": 1, "c": 1}}', 'key "c" twice'),
        ('{"a": 1, "\\u0061": 2}', 'key "a" twice'),
        ('{"a": 1,}', "line 1"),
        ("[1,]", "line 1"),
        ("{} {}", "Extra data"),
        ("{'a': 1}", "line 1 column 2"),
        ('{"a": 1} // no', "Extra data"),
        ('"a\nb"', "control character"),
        ("9" * (MAX_DIGITS + 1), "too many digits"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "nested too deeply"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a":' * 200_000, "nested too deeply"),
    ],
)
def test_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(NotStrictJson, match=why):
        parse(text)


def test_the_limits_themselves_are_within() -> None:
    assert parse("9" * MAX_DIGITS) == int("9" * MAX_DIGITS)
    assert parse("[" * MAX_DEPTH + "]" * MAX_DEPTH) == json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    brackets = ["[{" * 200, '\\"[[[', "\\"]
    assert parse(json.dumps(brackets)) == brackets  # in strings they nest nothing


def test_what_is_read_does_not_hang_on_the_setting_or_the_call_depth() -> None:
    """The box's Python may be another one: what it reads and the laptop refuses would void a good run."""
    program = (
        "import sys; from rehearsal.runner.strict_json import parse\n"
        "def deep(n): return deep(n - 1) if n else parse('[' * 100 + ']' * 100)\n"
        "parse('9' * 640); deep(700)"
    )
    subprocess.run([sys.executable, "-X", "int_max_str_digits=640", "-c", program], check=True)


def test_a_rule_is_told_in_words_of_our_own_and_the_grammar_is_not() -> None:
    with pytest.raises(NotStrictJson) as rule:
        parse('{"a": 1, "a": 2}')
    with pytest.raises(NotStrictJson) as grammar:
        parse("[1,]")
    assert (rule.value.rule, grammar.value.rule) == (str(rule.value), "")


@pytest.mark.parametrize("text", ['"\\' * 300_000 + "[" * 200, "[" * 200 + '"' + "\\" * 600_000])
def test_a_hostile_reply_is_looked_through_once(text: str) -> None:
    """Quadratic, this would take minutes: the suite's own time limit is the assertion."""
    with pytest.raises(NotStrictJson):
        parse(text)
