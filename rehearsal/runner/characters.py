"""What a character is in a reading of a text: a letter, a figure, or a mark between them. Tables only.

The marks, of which no text holds any of its own (see text.py):

    ' '           a gap for certain: white space
    JOIN, GAP     perhaps a gap: invisible characters, apostrophes, emphasis (JOIN); other punctuation (GAP)
    WALL          nothing reads on over it
    WEAK          only a long phrase reads on over it
    ON            a new JSON value that a reader reads on to
    HUMP          between small letter and capital, as in refundIssued: JOIN, but no edge of a phrase of one word
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator

from rehearsal.runner.confusables import LOOKALIKES, STYLISED, WRITTEN_OUT

JOIN, GAP, WALL, WEAK, ON, HUMP = "\x01", "\x02", "\x03", "\x04", "\x05", "\x06"
MARKS = JOIN + GAP + WALL + WEAK + ON + HUMP

# The marks that may stand within a phrase, and those that may stand beside it.
BETWEEN = frozenset(" " + JOIN + GAP + ON + WEAK + HUMP)
EDGES = BETWEEN | {WALL}


def _characters(*ranges: tuple[int, int]) -> Iterator[str]:
    return (chr(point) for first, last in ranges for point in range(first, last + 1))


# Default_Ignorable_Code_Point of Unicode's DerivedCoreProperties, and the blanks that are no white space.
# fmt: off
BLANK = frozenset(_characters(
    (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F),
    (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x2800, 0x2800), (0x3164, 0x3164),
    (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0), (0xFFF0, 0xFFFB), (0x1BCA0, 0x1BCA3), (0x1D159, 0x1D159),
    (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
))
# In these scripts a mark is a vowel and part of the spelling; elsewhere it is an accent and goes.
_SPELLING_MARKS = frozenset(c for c in _characters(
    (0x900, 0x109F), (0x1712, 0x17DD), (0x1920, 0x1AAD), (0x1B00, 0x1C37), (0xA802, 0xABED),
) if unicodedata.category(c) in ("Mn", "Mc") and c not in BLANK)
# fmt: on
# Such marks after an ASCII letter, where they are accents after all.
STRAY_MARKS = re.compile(f"(?<=[A-Za-z0-9])[{''.join(sorted(_SPELLING_MARKS))}]+")

_APOSTROPHES = frozenset("'‘’‚‛ʹʻʼʽˈ′‵´`＇ꞌ")
_EMPHASIS = frozenset("*~\\")
# Signs that decompose into letters or digits and yet only hang on a word.
_HANGERS = frozenset("™℠ªº⁰¹²³⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉")

_LOOKS = {c: letter for table in (STYLISED, LOOKALIKES) for letter, row in table.items() for c in row}
# And the same letters in the other case, which may look like nothing in ASCII.
_WITH_LOOKS = {other for c in _LOOKS for other in (c, c.lower(), c.upper()) if len(other) == 1 and other > "\x7f"}
_CLOSE = frozenset(c for row in LOOKALIKES.values() for c in row + row.lower())

# Thai to Tibetan, Myanmar, Khmer, kana, Han. (Compiling a pattern of these takes 4 ms, measured.)
_UNSPACED = (
    ("\u0e00", "\u0eff"),
    ("\u1000", "\u109f"),
    ("\u1780", "\u17ff"),
    ("\u3040", "\u30ff"),
    ("\u3400", "\u9fff"),
    ("\U00020000", "\U0003ffff"),
)


class Table(dict[int, str]):
    """For `str.translate`: what a character is in a reading, worked out once for each that occurs.

    In goes a code point; out come lower-case letters, figures, one of ' ', JOIN and GAP, or nothing for an accent.
    `look` says how a look-alike is read: as the letter it returns, or as itself where it returns None. Every
    table gives the same lengths, so that readings by different tables match character for character.
    """

    def __init__(self, look: Callable[[str], str | None]) -> None:
        super().__init__()
        self._look = look

    def __missing__(self, point: int) -> str:
        self[point] = found = self._read(chr(point))
        return found

    def _read(self, c: str) -> str:
        if c == " " or c in MARKS:
            return c
        if c in _APOSTROPHES or c in _EMPHASIS or c in _HANGERS or c in BLANK:
            return JOIN
        if c.isspace():
            return " "
        if c in WRITTEN_OUT:
            return WRITTEN_OUT[c]
        if c in _WITH_LOOKS:
            return self._look(c) or c.lower()
        category = unicodedata.category(c)
        if category == "Sk" or category[0] == "C":
            return JOIN
        if category[0] == "M" and c not in _SPELLING_MARKS:
            return ""
        if (digit := unicodedata.digit(c, None)) is not None:
            return str(digit)
        simpler = unicodedata.normalize("NFKD", c)
        simpler = simpler.casefold() if simpler == c else simpler
        if simpler != c:
            return "".join(map(self.__getitem__, map(ord, simpler)))
        return c if category[0] in "LNM" else GAP


def _by_case(c: str) -> str | None:
    return _LOOKS.get(c.upper()) or _LOOKS.get(c.lower()) or _LOOKS.get(c)


FOLD = Table(_by_case)  # one letter for capital and small alike, so that case never matters, in whatever script
LOOK = Table(_LOOKS.get)  # by the look alone: Greek "Ν" as n, "ν" as v
AS_IS = Table(lambda _: None)  # look-alikes as themselves

# What FOLD and LOOK read differently.
LOOK_DIFFERS = re.compile("[" + "".join(c for c in _WITH_LOOKS if _by_case(c) != _LOOKS.get(c)) + "]")


def is_unspaced(c: str) -> bool:
    """Whether the character `c` is of a script written without spaces, where any letter may begin a word."""
    return any(first <= c <= last for first, last in _UNSPACED)


def is_other_script(c: str) -> bool:
    """Whether the character `c` is a letter, and none of the Latin script."""
    return c > "\x7f" and c.isalpha() and "LATIN" not in unicodedata.name(c, "")


def is_lookalike(c: str) -> bool:
    """Whether the character `c` is hard to tell from an ASCII letter at reading size."""
    return c in _CLOSE
