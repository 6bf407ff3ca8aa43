"""A forbidden phrase as it is searched: its letters, and where among them gaps have to be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import eq

from rehearsal.runner.characters import AS_IS, BETWEEN, FOLD, GAP, HUMP, JOIN, is_unspaced
from rehearsal.runner.decoding import decode
from rehearsal.runner.letters import letters_of, spaced, squeezed
from rehearsal.runner.text import Text

# From this many letters on, a phrase is also found with its gaps in the wrong places ("refundhas beenis
# sued"). Shorter, "no refund" would be found in "piano refunds" (measured: PITFALLS, "Matching text").
LONG_PHRASE = 12


@dataclass(frozen=True)
class Form:
    """A phrase as it is searched.

    letters                          its letters and figures
    as_is                            the same with look-alikes as themselves
    key                              the same squeezed: what is searched
    gaps, perhaps                    before which of the letters a gap must, and may, stand
    words                            from which to which letter each word goes
    is_long                          found with gaps in the wrong places too
    reads_on                         found over the seam of any two values
    opens_anywhere, closes_anywhere  it begins or ends in a script without spaces, where a word needs no edge
    """

    letters: str
    as_is: str
    key: str
    gaps: frozenset[int]
    perhaps: frozenset[int]
    words: tuple[tuple[int, int], ...]
    is_long: bool
    reads_on: bool
    opens_anywhere: bool
    closes_anywhere: bool

    def agrees(self, hit: str) -> tuple[bool, bool]:
        """Whether the gaps of a spaced `hit` are the phrase's: those between figures (5.0 is not 50); all others."""
        numbers = others = True
        at, marks = 0, ""
        for c in hit:
            if c in BETWEEN:
                marks += c
                continue
            if at and self.letters[at - 1 : at + 1].isdecimal():
                is_visible = bool(marks.strip(JOIN + HUMP))
                numbers = numbers and is_visible == (at in self.gaps)
            elif at in self.gaps:
                others = others and bool(marks)
            elif at not in self.perhaps and marks.strip(JOIN + GAP + HUMP):
                others = others and is_unspaced(c)
            at, marks = at + 1, ""
        return numbers, others

    def has_its_letters(self, letters: str) -> bool:
        """Whether no word of a hit's `letters` consists of figures alone: "4 refund" is not "a refund"."""
        return all(any(map(eq, letters[a:b], self.letters[a:b])) for a, b in self.words)


@lru_cache(maxsize=4096)
def forms(phrase: str) -> tuple[Form, ...]:
    """The phrase as it stands and, if that says something else, with its markup resolved; none without letters."""
    plain = Text.of(phrase)
    both = (_form(text, reads_on='"' in phrase) for text in (plain.text, decode(plain).text))
    return tuple(dict.fromkeys(form for form in both if form.letters))


def _form(text: str, *, reads_on: bool) -> Form:
    marked = spaced(f" {text}", FOLD).strip(" " + JOIN + GAP)
    letters = letters_of(marked)
    gaps, perhaps, at = set(), set(), 0
    for c in marked:
        if c == " " or (c == GAP and letters[at - 1 : at + 1].isdecimal()):
            gaps.add(at)
        elif c in BETWEEN:
            perhaps.add(at)
        else:
            at += 1
    is_long = len(letters) >= LONG_PHRASE
    return Form(
        letters=letters,
        as_is=letters_of(text.translate(AS_IS)),
        key=squeezed(letters),
        gaps=frozenset(gaps),
        perhaps=frozenset(perhaps),
        words=tuple(pairwise([0, *sorted(gaps), len(letters)])),
        is_long=is_long,
        reads_on=is_long or reads_on,
        opens_anywhere=is_unspaced(letters[:1]),
        closes_anywhere=is_unspaced(letters[-1:]),
    )
