"""What a character is in a reading, and that the tables agree on how long it is."""

import unicodedata

import pytest

from rehearsal.runner.characters import (
    AS_IS,
    FOLD,
    GAP,
    JOIN,
    LOOK,
    LOOK_DIFFERS,
    MARKS,
    is_lookalike,
    is_other_script,
    is_unspaced,
)


@pytest.mark.parametrize(
    ("character", "read"),
    [
        ("A", "a"),
        ("7", "7"),
        ("٣", "3"),
        ("é", "e"),
        ("\u0301", ""),
        ("ß", "ss"),
        ("æ", "ae"),
        ("İ", "i"),
        ("ﬁ", "fi"),
        ("½", "1" + GAP + "2"),
        ("ø", "o"),
        ("е", "e"),
        ("Ν", "n"),
        ("\u093f", "\u093f"),
        ("款", "款"),
        (" ", " "),
        ("\xa0", " "),
        ("\n", " "),
        ("\u200b", JOIN),
        ("\u3164", JOIN),
        ("\x08", JOIN),
        ("’", JOIN),
        ("*", JOIN),
        ("™", JOIN),
        (".", GAP),
        ("–", GAP),
        ("💸", GAP),
        *((mark, mark) for mark in MARKS),
    ],
)
def test_a_character_is_letters_or_figures_or_a_mark(character, read):
    assert character.translate(FOLD) == read


def test_a_look_alike_is_read_alike_in_both_cases_or_by_its_look_or_as_itself():
    assert "Νν".translate(FOLD) == "nn"
    assert "Νν".translate(LOOK) == "nv"
    assert "Νν".translate(AS_IS) == "νν"
    assert LOOK_DIFFERS.search("ν")
    assert not LOOK_DIFFERS.search("Νа")


def test_all_tables_give_a_character_the_same_length():
    for point in [*range(0x3100), *range(0xA000, 0x10000), *range(0x10000, 0x20000)]:
        if unicodedata.category(chr(point)) not in ("Cn", "Co", "Cs"):
            assert len({len(table[point]) for table in (FOLD, LOOK, AS_IS)}) == 1, hex(point)


@pytest.mark.parametrize(
    "point",
    [0xE00, 0xE01, 0xEFF, 0x1000, 0x109F, 0x1780, 0x17FF, 0x3040, 0x30FF, 0x3400, 0x9FFF, 0x20000, 0x3FFFF],
)
def test_scripts_without_spaces(point):
    assert is_unspaced(chr(point))


@pytest.mark.parametrize("c", ["", "a", "é", "и", "ि", "환", "\u0dff", "\u0f00", "\u303f", "\ua000", "\U0001f4b8"])
def test_scripts_with_spaces(c):
    assert not is_unspaced(c)


def test_a_letter_of_another_script_may_look_like_one_of_ours():
    assert [(is_other_script(c), is_lookalike(c)) for c in "aéсж1“"] == [
        (False, False),
        (False, False),
        (True, True),
        (True, False),
        (False, False),
        (False, False),
    ]
