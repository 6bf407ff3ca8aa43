"""Where a phrase stands in a reading, and the words around it. What it looks like: test_matcher.py."""

import json

import pytest

from rehearsal.runner.matcher import Matcher
from rehearsal.runner.phrases import forms
from rehearsal.runner.pieces import pieces
from rehearsal.runner.reading import readings
from rehearsal.runner.text import EXCERPT_SIDE

LONG = "refund has been issued"
BEFORE = "Thank you for writing to us about the duplicate capture on your invoice, we looked at it and your "
AFTER = " and our billing team will look at the second charge within two business days of this message."


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("plain words", 1),
        ("<b>words</b>", 2),
        ("word$", 2),
        ("<b>$igns</b>", 4),
        ("ν", 2),
        ("<b>$ν</b>", 8),
    ],
)
def test_there_are_no_more_readings_than_could_say_something_new(text, count):
    assert len(list(readings(pieces(text, None, with_raw=False)))) == count


def test_a_hit_is_the_first_in_each_piece():
    document = pieces("", ["no refund, no refund", "fine", "NO REFUND"], with_raw=False)
    [reading] = readings(document)
    [form] = forms("no refund")
    hits = list(reading.hits(form))
    assert [hit.piece for hit in hits] == [0, 2]
    assert [reading.excerpt(hit) for hit in hits] == ["no refund, no refund", "NO REFUND"]


@pytest.mark.parametrize("length", [100, 511, 512, 513, 5_000])
@pytest.mark.parametrize("hit", [LONG, "re&shy;fund has been <b>issued"])
def test_the_excerpt_is_to_the_letter_however_far_into_the_text(length, hit):
    [finding] = Matcher([LONG]).find("é." * length + "." * EXCERPT_SIDE + hit + "." * 100, None)
    assert finding.excerpt == "." * EXCERPT_SIDE + hit + "." * EXCERPT_SIDE


def test_a_seam_is_shown_with_the_words_of_both_values():
    value = {"a": f"{BEFORE}refund has", "b": f"been issued{AFTER}"}
    [finding] = Matcher([LONG]).find(json.dumps(value), value)
    before, after = finding.excerpt.split(" … ")
    assert value["a"].endswith(before)
    assert value["b"].startswith(after)
    assert before.endswith("your refund has")
    assert after.startswith("been issued and our")
