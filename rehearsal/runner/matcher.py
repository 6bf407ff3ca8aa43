"""Finds forbidden phrases in a reply, whatever they are dressed up as. Pure.

    pieces.py       the texts of a reply: values, keys, the raw reply, and how a reader gets from one to the next
    text.py         a text and the way back to its original words
    decoding.py     escapes, entities, tags and links resolved
    characters.py   what each character is: letter, figure, or a mark such as "perhaps a gap"
    letters.py      from characters to lower-case letters with marks between them, and to letters alone
    phrases.py      a phrase in the same terms
    reading.py      a reply in one way of reading it, searched for a phrase

A phrase is searched by its letters alone, which costs one `in` a phrase; the marks then decide whether the
letters stand there as whole words. All steps are linear in the length of the text: single-pass patterns without
nested repetition, a bounded number of rounds of decoding, and a look at each hit of a phrase's letters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from rehearsal.runner.characters import BLANK
from rehearsal.runner.decoding import decode
from rehearsal.runner.letters import words
from rehearsal.runner.phrases import Form, forms
from rehearsal.runner.pieces import Piece, pieces
from rehearsal.runner.reading import Reading, readings
from rehearsal.runner.strict_json import Json
from rehearsal.runner.text import Text

# Part of the policy hash: raise it with every change of what is found.
MATCHER_VERSION = 1

# With these a phrase can stand in JSON's notation and not in the values ('"paid": 4.50').
_NOTATION = re.compile(r'[0-9"\[\]{}]')


@dataclass(frozen=True)
class Finding:
    """A forbidden phrase and where it stands.

    phrase   as the fixture has it
    pointer  JSON pointer of the value, or of the member whose key it is; '' means the raw reply
    excerpt  the original words around it, about 60 characters each side, cut between words. White space and
             control characters are as they came: whoever shows it must make them harmless
    """

    phrase: str
    pointer: str
    excerpt: str


class Matcher:
    """Looks for a fixture's phrases. Cheap to make: what is known about a phrase is cached."""

    def __init__(self, phrases: Sequence[str]) -> None:
        self._phrases = [(phrase, forms(phrase)) for phrase in dict.fromkeys(phrases)]
        self._needs_raw = any(_NOTATION.search(phrase) for phrase in phrases)

    def find(self, raw_reply: str, value: Json) -> list[Finding]:
        """Every phrase in every place, in the order of the phrases, then of the reply.

        `value` is the reply decoded, or None where it is not JSON. Looks in every key and string value at any
        depth, over the seam of two values that a reader would read on, and in the raw reply. At most one
        finding for a phrase and pointer; the raw reply is reported only where no value holds the phrase.
        """
        document = pieces(raw_reply, value, with_raw=self._needs_raw)
        ways = list(readings(document))
        return [
            finding for phrase, its_forms in self._phrases for finding in _findings(phrase, its_forms, document, ways)
        ]


def normalise(text: str) -> str:
    """Text as lower-case words of letters and digits with one space between them; '' if it holds none.

    Escapes, entities and markup are resolved, accents and invisible characters gone, look-alikes read as
    ASCII. Idempotent. The same steps make the readings that phrases are found in.
    """
    plain = Text.of(text)
    return words(decode(plain).text) or words(plain.text)


def is_blank(text: str) -> bool:
    """Whether a reader would see nothing: white space, invisible and control characters only."""
    return all(c.isspace() or c in BLANK or unicodedata.category(c) in ("Cc", "Cf", "Cs", "Cn") for c in text)


def _findings(
    phrase: str, its_forms: Sequence[Form], document: Sequence[Piece], ways: Sequence[Reading]
) -> list[Finding]:
    """A phrase's findings: one for each pointer, or one for the raw reply where no value holds the phrase."""
    found: dict[str, tuple[int, Finding]] = {}
    raw: list[Finding] = []
    for reading in ways:
        for form in its_forms:
            for hit in reading.hits(form):
                place = document[hit.piece].place
                if place is None:
                    raw = raw or [Finding(phrase, "", reading.excerpt(hit))]
                elif (pointer := place.pointer()) not in found:
                    found[pointer] = hit.piece, Finding(phrase, pointer, reading.excerpt(hit))
    return [finding for _, finding in sorted(found.values(), key=itemgetter(0))] or raw
