"""From a text to its letters: with marks between them (`spaced`), and alone (`squeezed`, `letters_of`).

A reading is searched squeezed, where a hit is one `in`; its marks then tell whether that hit is whole words.
"""

from __future__ import annotations

import re

from rehearsal.runner.characters import BETWEEN, EDGES, FOLD, GAP, HUMP, JOIN, STRAY_MARKS, WEAK, Table

# Both begin with the rarer character, for which the engine skips ahead, and look back from there.
CAPITAL_AFTER_SMALL = re.compile("[A-Z](?<=[a-z].)")
_CAPITAL_I = re.compile("I(?<=[a-z]I)(?=[a-z])")

_HYPHENATED = re.compile("[-\u00ad\u00ac\u2010-\u2013\u2212\ufe63\uff0d][ \t]*\r?\n[ \t>|*]*")
_RUN = re.compile(f"[ {JOIN}{GAP}]{{2,}}")
# Three single letters or more in a row are letters of a spelled-out word: perhaps no gap between them.
_SPELLED = re.compile(r" (?:[^\W_] ){3,}")

_SIGNS = str.maketrans("@$€|!", "ase11")
_SIGN = re.compile("[@$€|!]+")
_LONE_L = re.compile(" l(?= )")

# What a figure may stand for. Squeezed, all that may stand for each other is one letter: l, 1 and i are.
_STANDS_FOR = {
    "0": "o",
    "1": "il",
    "2": "z",
    "3": "e",
    "4": "a",
    "5": "s",
    "6": "g",
    "7": "t",
    "8": "b",
    "9": "g",
}
_ALIKE = {"l": "i", **{figure: letters[0] for figure, letters in _STANDS_FOR.items()}}
_TO_KEY: dict[str, str] = {**dict.fromkeys(BETWEEN - {WEAK}, ""), **_ALIKE}
_TO_LETTERS: dict[str, str] = dict.fromkeys(EDGES, "")
_ASCII_TO_KEY = str.maketrans(_TO_KEY)
_ASCII_TO_LETTERS = str.maketrans(_TO_LETTERS)


def words(text: str) -> str:
    """The words of a text in lower case with one space between them, punctuation and accents gone."""
    folded = _joints(text).translate(FOLD).replace(JOIN, "").replace(HUMP, "").replace(GAP, " ")
    return STRAY_MARKS.sub("", " ".join(folded.split()))


def spaced(text: str, table: Table) -> str:
    """Letters by `table`, with marks between them and a mark at the end.

    Runs of ' ', JOIN and GAP are one mark; the marks between pieces of a reply stay as they are.
    """
    return _SPELLED.sub(_unspelled, _RUN.sub(_one_mark, _joints(text).translate(table) + " "))


def squeezed(reading: str) -> str:
    """The letters of a spaced text to search in, and the marks that end a search; figures as letters."""
    return reading.translate(_ASCII_TO_KEY) if reading.isascii() else _changed(reading, _TO_KEY)


def letters_of(reading: str) -> str:
    """The letters and figures of a spaced text, without any mark."""
    return reading.translate(_ASCII_TO_LETTERS) if reading.isascii() else _changed(reading, _TO_LETTERS)


def may_be(letter: str, wanted: str) -> bool:
    """Whether one letter or figure may stand for the other, which being squeezed alike does not say: l is no i."""
    return letter == wanted or wanted in _STANDS_FOR.get(letter, "") or letter in _STANDS_FOR.get(wanted, "")


def figured(text: str) -> str:
    """Signs and letters as what they stand for inside a word: "i$$ued" is "issued", "wiIl" and "wi|l" "wi1l".

    As long as `text`.
    """

    def figure(match: re.Match[str]) -> str:
        signs, start, end = match[0], *match.span()
        before, after = text[max(start - 1, 0) : start], text[end : end + 1]
        in_word = _is_letter(after) or (signs[0] != "!" and _is_letter(before))
        if "|" not in signs and "!" not in signs:  # "|50|" is a table and no 1501
            in_word = in_word or before.isdigit() or after.isdigit()
        return signs.translate(_SIGNS) if in_word else signs

    return _LONE_L.sub(" 1", _CAPITAL_I.sub("1", _SIGN.sub(figure, text)))


def _is_letter(beside: str) -> bool:
    return beside.isalpha() or beside == JOIN or beside > "\x7f"


def _joints(text: str) -> str:
    """Marks where only the original shows a seam: in refundIssued, and at a hyphenation."""
    text = CAPITAL_AFTER_SMALL.sub(rf"{HUMP}\g<0>", text)
    return _HYPHENATED.sub(JOIN, text) if "\n" in text else text


def _one_mark(run: re.Match[str]) -> str:
    return " " if " " in run[0] else JOIN


def _unspelled(run: re.Match[str]) -> str:
    return f" {run[0][1:-1].replace(' ', JOIN)} "


def _changed(text: str, changes: dict[str, str]) -> str:
    """What `str.translate` does, eight times faster for a few changes in text beyond ASCII (measured)."""
    for old, new in changes.items():
        text = text.replace(old, new)
    return text
