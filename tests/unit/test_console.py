from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rehearsal.console import Console, safe
from rehearsal.runner.errors import UsageError

HOSTILE = "\x1b[2J\x1b]0;owned\x07 [bold]m[/bold] \u202eevil\u2066 \x9b31m \rover \x08\x7f\u200b\u2028 :smile:"
STEERING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


@given(st.text(st.characters(exclude_categories=())))
def test_nothing_that_steers_a_terminal_is_left(text: str) -> None:
    shown = safe(text)
    assert not {unicodedata.category(letter) for letter in shown} & {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    shown.encode()


def test_ordinary_text_stays_as_it_is() -> None:
    assert safe("Größe 5 € — 你好 [x] 🙂") == "Größe 5 € — 你好 [x] 🙂"
    assert safe("a\nb\x1b[0m") == "a b\\x1b[0m"


def everything(console: Console, text: str) -> None:
    console.line(text)
    console.step("run-1", text)
    console.start_attempts(2, 0)
    event = {"fixture_id": text, "attempt": text, "outcome": "fail", "reason": text, "done": 1}
    console.attempt("run-1", event, text)
    console.attempt("run-1", {"outcome": "pass", "done": text, "fixture_id": "T-1", "attempt": 1}, text)
    console.end_attempts()
    console.end_attempts()
    console.table(["fixture", "verdict"], [[text, "fail"]], style_by=1)
    console.conclusion("red", text)
    console.error(UsageError(text + "\n  and " + text, hint=text))


@pytest.mark.parametrize("json_output", [False, True])
def test_nothing_of_a_models_text_steers_the_terminal(capsys: pytest.CaptureFixture[str], json_output: bool) -> None:
    everything(Console(json_output=json_output), HOSTILE)
    shown = capsys.readouterr()
    assert not STEERING.search(shown.out + shown.err)
    assert "[bold]m[/bold]" in shown.out + shown.err, "no markup is read"
    assert ":smile:" in shown.out + shown.err
    assert (shown.out == "") is json_output


@pytest.mark.parametrize("no_color", [False, True])
def test_on_a_terminal_only_our_own_escapes_appear_and_no_color_takes_the_colours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_color: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    everything(Console(), HOSTILE)
    shown = capsys.readouterr()
    text = shown.out + shown.err
    assert "\x1b[" in text, "rich takes this for a terminal"
    colours = re.findall(r"\x1b\[[\d;]*?\b3[0-7]m", text)
    assert (colours == []) is no_color
    rest = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", text.replace("\r", ""))
    assert not STEERING.search(rest)
    assert "\x1b]" not in text
    assert "\x1b[2J" not in text


def test_elsewhere_every_event_is_a_plain_line_with_run_and_fixture(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.start_attempts(2, 0)
    console.attempt("run-1", {"fixture_id": "T-1", "attempt": 1, "outcome": "pass", "reason": None}, "")
    console.attempt("run-1", {"fixture_id": "T-2", "attempt": 1, "outcome": "fail", "reason": "x" * 300}, "")
    console.end_attempts()
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["run-1  T-1  attempt 1: pass", f"run-1  T-2  attempt 1: fail  {'x' * 300}"]


@pytest.mark.parametrize("json_output", [False, True])
def test_json_has_standard_output_to_itself(capsys: pytest.CaptureFixture[str], json_output: bool) -> None:
    console = Console(json_output=json_output)
    value: dict[str, Any] = {"verdict": "red", "reason": HOSTILE}
    console.line("progress")
    console.result(value)
    shown = capsys.readouterr()
    if json_output:
        assert json.loads(shown.out) == value
        assert shown.out.count("\n") == 1
        assert not STEERING.search(shown.out)
        assert shown.err == "progress\n"
    else:
        assert shown.out == "progress\n"


def test_an_error_is_a_sentence_its_lines_and_a_hint_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    Console().error(UsageError("it broke: 2 issues\n  a#/id: is required\n  b: is empty", hint="mend it"))
    Console().error(UsageError("alone"))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "error: it broke: 2 issues\n  a#/id: is required\n  b: is empty\nhint: mend it\nerror: alone\n"
