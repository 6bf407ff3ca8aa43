"""A changed text knows the original of each character; a cut shows a hit between whole words."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rehearsal.runner.text import EXCERPT_HIT, EXCERPT_SIDE, Text, cut

VOWELS, CONSONANTS, LONG_RUNS = re.compile("[aeiou]"), re.compile("[b-df]"), re.compile("z{2,}")


def test_a_text_has_no_marks_of_its_own_and_the_length_of_the_original():
    assert Text.of("a\x01b\x06\x07").text == "a\0b\0\x07"


def test_what_was_replaced_leads_back_to_all_that_stood_there():
    text = Text.of("see &amp;amp; go")
    for _ in range(2):
        assert text.replace(re.compile("&amp;"), lambda _: "&")
    assert not text.replace(re.compile("&amp;"), lambda _: "&")
    assert text.text == "see & go"
    assert [text.origin(i) for i in (0, 3, 4, 5, 7)] == [(0, 1), (3, 4), (4, 13), (13, 14), (15, 16)]


def test_none_leaves_a_match_as_it_is_and_a_copy_changes_alone():
    text = Text.of("aXbY")
    copy = text.copy()
    assert copy.replace(re.compile("[A-Z]"), lambda c: None if c == "X" else "")
    assert (text.text, copy.text) == ("aXbY", "aXb")
    assert not text.steps


@given(st.text("abeioz", max_size=40))
def test_what_nothing_replaced_leads_back_to_itself(original):
    text = Text.of(original)
    text.replace(LONG_RUNS, lambda _: "")
    text.replace(VOWELS, lambda vowel: "_" * ord(vowel[0]) if vowel in "ae" else None)
    text.replace(CONSONANTS, lambda _: "__")
    for position, c in enumerate(text.text):
        start, end = text.origin(position)
        assert 0 <= start < end <= len(original)
        assert c == "_" or original[start:end] == c


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("", "", "HIT"),
        ("so ", " now", "so HIT now"),
        ("cutword " + "x" * (EXCERPT_SIDE - 2) + " ", " y", "x" * (EXCERPT_SIDE - 2) + " HIT y"),
        ("x ", " y " + "z" * EXCERPT_SIDE, "x HIT y"),
        ("x ", " " + "z" * EXCERPT_SIDE, "x HIT"),
    ],
)
def test_a_cut_holds_whole_words(before, after, shown):
    assert cut(f"{before}HIT{after}", len(before), len(before) + 3) == shown


def test_a_long_hit_is_cut_short():
    assert len(cut("x" * 9_000, 0, 9_000)) == EXCERPT_HIT + EXCERPT_SIDE
