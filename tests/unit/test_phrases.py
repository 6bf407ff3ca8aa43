"""What is known of a phrase before any reply is there."""

import pytest

from rehearsal.runner.phrases import LONG_PHRASE, forms


def test_a_phrase_is_its_letters_and_the_gaps_before_them():
    [form] = forms("Hasn’t been 5.0!")
    assert (form.letters, form.key) == ("hasntbeen50", "hasntbeenso")
    assert (form.gaps, form.perhaps) == ({5, 9, 10}, {4})
    assert form.words == ((0, 5), (5, 9), (9, 10), (10, 11))


def test_markup_gives_a_second_form_only_where_it_says_something_else():
    assert [form.letters for form in forms("re<b>fund</b>")] == ["rebfundb", "refund"]
    assert len(forms("re**fund**")) == 1


@pytest.mark.parametrize("phrase", ["", "…", "\u200b", "!?"])
def test_a_phrase_without_letters_has_no_form(phrase):
    assert forms(phrase) == ()


def test_only_a_long_phrase_or_one_of_json_notation_is_read_over_every_seam():
    for phrase, is_long, reads_on in [
        ("a" * LONG_PHRASE, True, True),
        ("a" * (LONG_PHRASE - 1), False, False),
        ('no", "refund', False, True),
    ]:
        [form] = forms(phrase)
        assert (form.is_long, form.reads_on) == (is_long, reads_on)


def test_a_phrase_of_a_script_without_spaces_needs_no_edge():
    [form] = forms("退款 ok")
    assert (form.opens_anywhere, form.closes_anywhere) == (True, False)


@pytest.mark.parametrize(
    ("phrase", "hit", "agrees"),
    [
        ("no refund", "no refund", (True, True)),
        ("no refund", "no\x01refund", (True, True)),
        ("no refund", "norefund", (True, False)),
        ("no refund", "no re fund", (True, False)),
        ("no refund", "no re\x02fund", (True, True)),
        ("e-mail", "e mail", (True, True)),
        ("50 now", "5\x020 now", (False, True)),
        ("50 now", "5\x010 now", (True, True)),
        ("5.0 now", "50 now", (False, True)),
        ("我们", "我 们", (True, True)),
    ],
)
def test_the_gaps_of_a_hit_agree_or_not(phrase, hit, agrees):
    [form] = forms(phrase)
    assert form.agrees(hit) == agrees


def test_a_word_of_figures_alone_is_not_the_phrase():
    [form] = forms("is it")
    assert form.has_its_letters("1sit")
    assert not form.has_its_letters("15it")
