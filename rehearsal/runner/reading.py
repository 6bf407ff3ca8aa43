"""A reply in one way of reading it, and where a phrase stands in it.

Perhaps-gaps are gaps or nothing, whichever suits the phrase, so one reading serves any mixture of dodges. Only
what changes letters needs another: encodings and markup resolved, signs as letters, look-alikes by their look.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from operator import is_not
from typing import NamedTuple

from rehearsal.runner.characters import (
    AS_IS,
    BETWEEN,
    EDGES,
    FOLD,
    HUMP,
    LOOK,
    LOOK_DIFFERS,
    ON,
    WALL,
    WEAK,
    Table,
    is_lookalike,
    is_other_script,
)
from rehearsal.runner.decoding import decode
from rehearsal.runner.letters import figured, letters_of, may_be, spaced, squeezed
from rehearsal.runner.phrases import Form
from rehearsal.runner.pieces import Piece
from rehearsal.runner.text import EXCERPT_SIDE, Text, cut

_SEAMS = re.compile(f"[{WALL}{WEAK}{ON}]")
_BLOCK = 512  # characters whose letters are counted at once


class Hit(NamedTuple):
    """Where a phrase stands: the number of the piece that it begins in, and its start and end in the reading."""

    piece: int
    start: int
    end: int


class Reading:
    """All pieces of a reply in one way of reading them: `sources` are their texts, `table` says what letters are."""

    def __init__(self, pieces: Sequence[Piece], sources: Sequence[Text], table: Table) -> None:
        self._pieces = pieces
        self._sources = sources
        self._table = table
        self._document = "".join([f" {p.mark} {s.text}" for p, s in zip(pieces, sources, strict=True)])
        self._spaced = spaced(self._document, table)
        within = squeezed(self._spaced)
        self._within = _Squeezed(within, self._spaced, BETWEEN - {WEAK})
        self._over_weak = _Squeezed(within.replace(WEAK, ""), self._spaced, BETWEEN)
        self._counters: dict[int, _LetterCounter] = {}

    def hits(self, form: Form) -> Iterator[Hit]:
        """The first place in each piece where the form stands."""
        searched = self._over_weak if form.reads_on else self._within
        at = searched.text.find(form.key)
        while at >= 0:
            positions = searched.positions
            start, end = positions[at], positions[at + len(form.key) - 1] + 1
            if self._stands(form, start, end):
                piece = self._piece_at(start)
                yield Hit(piece, start, end)
                if piece + 1 == len(self._pieces):
                    return
                at = bisect_left(positions, self._starts[piece + 1])
            else:
                at += 1
            at = searched.text.find(form.key, at)

    def excerpt(self, hit: Hit) -> str:
        """The original words around a hit; of both pieces where it goes over a seam."""
        first, last = hit.piece, self._piece_at(hit.end - 1)
        head, tail = self._pieces[first].original, self._pieces[last].original
        start, end = self._origin(first, hit.start)[0], self._origin(last, hit.end - 1)[1]
        if first == last:
            return cut(head, start, end)
        return f"{cut(head, start, len(head))} … {cut(tail, 0, end)}"

    def _stands(self, form: Form, start: int, end: int) -> bool:
        """Whether the letters from `start` to `end` are the phrase, not by chance other words'."""
        edges = EDGES if len(form.words) > 1 else EDGES - {HUMP}
        opens = form.opens_anywhere or self._spaced[start - 1] in edges
        closes = form.closes_anywhere or self._spaced[end] in edges
        if not (opens and closes) and not form.is_long:
            return False
        hit = self._spaced[start:end]
        letters = letters_of(hit)
        if not all(map(may_be, letters, form.letters)):
            return False
        numbers_agree, gaps_agree = form.agrees(hit)
        if not numbers_agree:
            return False
        if form.is_long:
            return (opens and closes) or not gaps_agree
        return gaps_agree and form.has_its_letters(letters) and not self._is_foreign(form, start, end)

    def _is_foreign(self, form: Form, start: int, end: int) -> bool:
        """Whether one word only looks like the phrase: of another script, in a sentence of that script."""
        if len(form.words) > 1 or self._document.isascii():
            return False
        word = "".join(c for c in self._as_is[start:end] if c not in BETWEEN)
        if word == form.as_is or not all(map(is_other_script, word)):
            return False
        around = self._as_is[max(start - EXCERPT_SIDE, 0) : start] + self._as_is[end : end + EXCERPT_SIDE]
        return any(is_other_script(c) and not is_lookalike(c) for c in around)

    @cached_property
    def _as_is(self) -> str:
        """The spaced text without look-alikes read as ASCII, character for character."""
        return spaced(self._document, AS_IS)

    @cached_property
    def _starts(self) -> list[int]:
        """Where each piece's mark stands. (The raw reply, always the last, has marks of its own inside.)"""
        return [mark.start() for mark in _SEAMS.finditer(self._spaced)][: len(self._pieces)]

    def _piece_at(self, position: int) -> int:
        return bisect_right(self._starts, position) - 1

    def _origin(self, piece: int, position: int) -> tuple[int, int]:
        """From where to where the letter at `position` stands in the piece's original: the letters are counted."""
        letters = self._over_weak.positions
        number = bisect_left(letters, position) - bisect_left(letters, self._starts[piece] + 1)
        source = self._sources[piece]
        if piece not in self._counters:
            self._counters[piece] = _LetterCounter(source.text, self._table)
        return source.origin(self._counters[piece].place(number))


class _Squeezed:
    """The letters of a spaced text to search in (`text`), which lacks the `dropped` marks only."""

    def __init__(self, text: str, spaced_text: str, dropped: frozenset[str]) -> None:
        self.text = text
        self._spaced = spaced_text
        self._dropped = dropped

    @cached_property
    def positions(self) -> array[int]:
        """For every character of the squeezed text, its place in the spaced one."""
        return array("L", [i for i, c in enumerate(self._spaced) if c not in self._dropped])


class _LetterCounter:
    """Tells where in a text the letter of a number stands: counted in blocks, then one by one."""

    def __init__(self, text: str, table: Table) -> None:
        self._text = text
        self._table = table
        blocks = (text[i : i + _BLOCK] for i in range(0, len(text), _BLOCK))
        self._before = list(accumulate(map(self._count, blocks), initial=0))

    def place(self, number: int) -> int:
        """Where the character stands that gives letter `number`, from 0."""
        block = bisect_right(self._before, number) - 1
        missing = number - self._before[block]
        place = block * _BLOCK
        while place < len(self._text) - 1 and (missing := missing - self._count(self._text[place])) >= 0:
            place += 1
        return place

    def _count(self, text: str) -> int:
        return len(letters_of(text.translate(self._table)))


def readings(pieces: Sequence[Piece]) -> Iterator[Reading]:
    """Every way to read the pieces that could say something new; at most eight."""
    plain = [piece.source for piece in pieces]
    decoded = [decode(source) for source in plain]
    is_new = any(map(is_not, plain, decoded))
    for sources in (plain, decoded) if is_new else (plain,):
        yield from _looks(pieces, sources)
        with_figures = [Text(figured(source.text), source.steps) for source in sources]
        if with_figures != sources:
            yield from _looks(pieces, with_figures)


def _looks(pieces: Sequence[Piece], sources: Sequence[Text]) -> Iterator[Reading]:
    yield Reading(pieces, sources, FOLD)
    if any(not source.text.isascii() and LOOK_DIFFERS.search(source.text) for source in sources):
        yield Reading(pieces, sources, LOOK)
