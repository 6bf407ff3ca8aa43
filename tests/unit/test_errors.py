from __future__ import annotations

import pytest

from rehearsal.runner import errors
from rehearsal.runner.errors import InvalidInput, Issue, RehearsalError


def tree() -> dict[str, int]:
    """Name and exit code of every class, as the drawing at the top of the file has them."""
    lines = (errors.__doc__ or "").splitlines()
    drawn = [line.replace("│", " ").lstrip(" ├└─").split() for line in lines if line.startswith("    ")]
    return {words[0]: int(words[1]) for words in drawn if words[1].isdigit()}


def test_the_drawing_is_the_tree() -> None:
    def below(kind: type[RehearsalError]) -> list[type[RehearsalError]]:
        return [kind, *(found for child in kind.__subclasses__() for found in below(child))]

    here = {kind.__name__: kind.exit_code for kind in below(RehearsalError) if kind.__module__ == errors.__name__}
    here |= {"Interrupted": errors.Interrupted.exit_code}
    assert {name: code for name, code in here.items() if name != "RehearsalError"} == tree()


def test_an_interrupt_is_swallowed_by_nothing_that_survives_exceptions() -> None:
    assert not issubclass(errors.Interrupted, Exception)


def test_no_verdict_is_never_the_exit_code_of_a_measured_red_or_a_green() -> None:
    assert {kind.exit_code for kind in errors.NoVerdict.__subclasses__()} == {3}


@pytest.mark.parametrize(("count", "words"), [(1, "1 issue"), (2, "2 issues")])
def test_invalid_input_names_every_issue_sorted(count: int, words: str) -> None:
    issues = [Issue("b.json", "/id", "is required"), Issue("a.json", "", "is empty")][:count]
    error = InvalidInput("the corpus can't be used", issues, hint="look")
    assert error.message.splitlines() == [
        f"the corpus can't be used: {words}",
        *sorted(["  a.json: is empty", "  b.json#/id: is required"][2 - count :])[:count],
    ]
    assert (error.issues, error.hint, error.exit_code) == (sorted(issues), "look", 2)
