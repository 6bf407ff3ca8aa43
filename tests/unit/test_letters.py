"""From a text to letters with marks between them, and to letters alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rehearsal.runner.characters import AS_IS, FOLD, GAP, HUMP, JOIN, LOOK, ON, WALL, WEAK
from rehearsal.runner.letters import figured, letters_of, may_be, spaced, squeezed, words


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("A  \u200b b", "a b "),
        ("a.,b", f"a{JOIN}b "),
        ("a.b", f"a{GAP}b "),
        ("is-\n  sued", f"is{JOIN}sued "),
        ("wasIssued", f"was{HUMP}issued "),
        ("so r e f u n d it", f"so r{JOIN}e{JOIN}f{JOIN}u{JOIN}n{JOIN}d it "),
        ("a b it", "a b it "),
        (f"a{WALL}b{WEAK}c{ON}d", f"a{WALL}b{WEAK}c{ON}d "),
    ],
)
def test_spaced(text, reading):
    assert spaced(text, FOLD) == reading


def test_squeezed_keeps_the_marks_that_end_a_search_and_letters_none():
    for letter in ("a", "é"):
        reading = f"{letter}{JOIN}0{GAP}l1 {WALL}5{WEAK}b{ON}8{HUMP}c"
        assert squeezed(reading) == f"{letter}oii{WALL}s{WEAK}bbc"
        assert letters_of(reading) == f"{letter}0l15b8c"


@given(st.text("aÉ1lIΝν .\n-\u200b\u0301½ß\x01\x04", max_size=40))
def test_readings_by_different_tables_match_character_for_character(text):
    assert len(spaced(text, FOLD)) == len(spaced(text, LOOK)) == len(spaced(text, AS_IS))


def test_a_figure_may_be_several_letters_that_are_not_each_other():
    assert all(may_be(*pair) for pair in ("aa", "1l", "l1", "1i", "i1", "0o", "$$"))
    assert not any(may_be(*pair) for pair in ("li", "il", "1o", "ab"))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("i$$ued", "issued"),
        ("w@s !ssued", "was 1ssued"),
        ("wi|l wiIl", "wi1l wi1l"),
        ("issued! now", "issued! now"),
        ("|50| $ 5", "|50| $ 5"),
        ("$50", "s50"),
        ("€xtra", "extra"),
        ("a l b", "a 1 b"),
    ],
)
def test_figured(text, read):
    assert figured(text) == read


def test_words():
    assert words("The  REFUND\u200b has—been is-\nsued, e\u093f!") == "the refund has been issued e"
