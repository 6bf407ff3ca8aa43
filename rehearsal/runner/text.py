"""A text that can be changed, and the way back to the words as they came."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from rehearsal.runner.characters import MARKS

EXCERPT_SIDE = 60  # characters shown each side of a hit: about a line in all
EXCERPT_HIT = 300  # characters shown of the hit itself, which invisible ones can make as long as the reply

_OWN_MARKS = re.compile(f"[{MARKS}]")
_SPACE = re.compile(r"\s+")


class Edit(NamedTuple):
    """One replacement: from where to where it stands now, and what stood there before."""

    start: int
    end: int
    old_start: int
    old_end: int


@dataclass
class Text:
    """A text after steps of replacement: `text` as it is now, `steps` with the edits of each step in their order."""

    text: str
    steps: list[list[Edit]] = field(default_factory=list)

    @classmethod
    def of(cls, original: str) -> Text:
        """The text to start from: as long as `original`, without characters that serve as marks."""
        return cls(sanitised(original))

    def copy(self) -> Text:
        """The same text, to be changed on its own."""
        return Text(self.text, list(self.steps))

    def replace(self, pattern: re.Pattern[str], new: Callable[[str], str | None]) -> bool:
        """Replace every match by `new` of it (None leaves it); whether anything changed."""
        parts: list[str] = []
        edits: list[Edit] = []
        done = length = 0
        for match in pattern.finditer(self.text):
            start, end = match.span()
            other = new(match[0])
            if other is None:
                continue
            length += start - done
            parts += (self.text[done:start], other)
            edits.append(Edit(length, length + len(other), start, end))
            length += len(other)
            done = end
        if edits:
            self.text = "".join(parts) + self.text[done:]
            self.steps.append(edits)
        return bool(edits)

    def origin(self, position: int) -> tuple[int, int]:
        """From where to where the character at `position` (or what became it) stood in the original text."""
        start, end = position, position + 1
        for edits in reversed(self.steps):
            start, end = _before(edits, start)[0], _before(edits, end - 1)[1]
        return start, end


def sanitised(text: str) -> str:
    """The text without the characters that serve as marks here; NUL is read as they would be."""
    return _OWN_MARKS.sub("\0", text)


def cut(text: str, start: int, end: int) -> str:
    """`text` from `start` to `end` with up to EXCERPT_SIDE characters each side, and no word cut in two."""
    end = min(end, start + EXCERPT_HIT)
    first, last = max(start - EXCERPT_SIDE, 0), min(end + EXCERPT_SIDE, len(text))
    before, after = text[first:start], text[end:last]
    if first and (space := _SPACE.search(before)):
        before = before[space.end() :]
    if last < len(text) and (words := after.rsplit(None, 1)):
        after = after[: len(after.rstrip()) - len(words[-1])] if len(words) > 1 or after[:1].isspace() else after
    return (before + text[start:end] + after).strip()


def _before(edits: list[Edit], position: int) -> tuple[int, int]:
    """From where to where the character at `position` stood before one step."""
    nearest = bisect_right(edits, position, key=itemgetter(0)) - 1
    if nearest < 0:
        return position, position + 1
    edit = edits[nearest]
    if position < edit.end:
        return edit.old_start, edit.old_end
    before = edit.old_end + position - edit.end
    return before, before + 1
