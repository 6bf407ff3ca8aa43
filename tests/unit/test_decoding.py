"""Encodings are undone and markup taken out, as a reader would see it. What it hides: test_matcher.py."""

import pytest

from rehearsal.runner.characters import GAP, JOIN
from rehearsal.runner.decoding import decode
from rehearsal.runner.text import Text


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("&amp;&lt;&EACUTE;&nbsp", "&<é\xa0"),
        ("&#233;&#xE9;&#150;&#x110000;", "éé–\ufffd"),
        ("&notit; &nosuchthing;", "¬it &nosuchthing;"),
        ("\\u00e9\\xe9\\u{1F4B8}\\U0001F4B8\\ud83d\\udcb8", "éé💸💸💸"),
        ("a\\nb\\tc\\*d\\q", "a\nb\tc*d\\q"),
        ("%C3%A9, %E9, %u00e9, 100%", "é, é, é, 100%"),
        ("%FF%FE", "ÿþ"),
        ("%A0 =AB", "%A0 =AB"),
        ("=C3=A9 so =\r\nft x=1", "é so ft x=1"),
        ("re<b>f</b><p>und</p><!-- no -->.", f"re{JOIN}f{JOIN}{GAP}und{GAP}{JOIN}."),
        ("1 < 2 > 1", "1 < 2 > 1"),
        ("[a](b(c)d) [e][f] g[1] h[^note] [i]", f"[a{JOIN} [e{JOIN} g{JOIN} h{JOIN} [i]"),
        ("\u202edeussi\u202c now", "issued\u202c now"),
        ("e\u093fe", "ee"),
        ("\\u0001", "\0"),
    ],
)
def test_decode(text, seen):
    assert decode(Text.of(text)).text == seen


@pytest.mark.parametrize("text", ["", "as it is", "naïve – 退款", "हिन्दी"])
def test_a_text_that_hides_nothing_is_returned_itself(text):
    source = Text.of(text)
    assert decode(source) is source


def test_encodings_inside_encodings_are_undone_four_times_and_no_more():
    for layers in range(1, 7):
        hidden = "&" + "amp;" * (layers - 1) + "eacute;"
        assert (decode(Text.of(hidden)).text == "é") is (layers <= 4)


def test_the_source_stays_and_the_result_leads_back_to_it():
    source = Text.of("is<b>s&#117;</b>ed")
    result = decode(source)
    assert (source.text, source.steps) == ("is<b>s&#117;</b>ed", [])
    assert result.origin(result.text.index("u")) == (6, 12)
    assert result.origin(len(result.text) - 1) == (17, 18)
