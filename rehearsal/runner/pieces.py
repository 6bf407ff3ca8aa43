"""The texts of a reply, each with its place and with the mark that says how a reader gets there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rehearsal.runner import strict_json
from rehearsal.runner.characters import GAP, ON, WALL, WEAK
from rehearsal.runner.letters import CAPITAL_AFTER_SMALL
from rehearsal.runner.strict_json import Json
from rehearsal.runner.text import Text

# A key is read on into its value as far as this many characters.
_KEY_READS_ON = 200

# The end of a string and what follows it in JSON's notation. After a backslash the quote is part of a text.
_STRING_END = re.compile(r'(?<!\\)"\s*[,:\]}]')
_FIRST_LETTER = re.compile(r"[^\W_]")


class Place:
    """A place in a JSON value, from its parent; the pointer is spelled out only where something is found."""

    def __init__(self, parent: Place | None = None, token: str | int = "") -> None:
        self.parent = parent
        self.token = token

    def pointer(self) -> str:
        """The JSON pointer (RFC 6901) of this place."""
        tokens: list[str] = []
        place: Place = self
        while place.parent is not None:
            tokens.append(str(place.token).replace("~", "~0").replace("/", "~1"))
            place = place.parent
        return "".join(f"/{token}" for token in reversed(tokens))


@dataclass(frozen=True)
class Piece:
    """One text of a reply.

    mark      how a reader comes from the piece before: WALL, WEAK or ON
    place     where it stands, None for the raw reply
    original  the text as it came
    source    the same, to be searched
    """

    mark: str
    place: Place | None
    original: str
    source: Text


def pieces(raw_reply: str, value: Json, *, with_raw: bool) -> list[Piece]:
    """What to look through: every string of `value` in reading order, every key, and last the raw reply.

    `value` is the reply decoded, None where it is not JSON. The raw reply is left out where it says nothing but
    this value, unless `with_raw`.
    """
    found = list(_of_value(value)) if value is not None else []
    if with_raw or not _says_no_more_than(raw_reply, value):
        found.append(_of_raw(raw_reply, is_json=value is not None))
    return found


def _of_raw(raw_reply: str, *, is_json: bool) -> Piece:
    """The raw reply. In JSON, a string's end is no place to read on: "no", "refund" are two values."""
    source = Text.of(raw_reply)
    if is_json:
        source.replace(_STRING_END, lambda _: WEAK)
    return Piece(WALL, None, raw_reply, source)


def _says_no_more_than(raw_reply: str, value: Json) -> bool:
    """Whether the raw reply is this very value, so that looking at keys and values is enough."""
    try:
        return value is not None and strict_json.parse(raw_reply) == value
    except (strict_json.NotStrictJson, RecursionError):
        return False


def _of_value(value: Json) -> Iterator[Piece]:
    """All strings in reading order, then every key with the value that it introduces."""
    keys: list[Piece] = []
    before: str | None = None
    stack: list[tuple[Place, Json, bool]] = [(Place(), value, True)]
    while stack:
        place, item, in_list = stack.pop()
        if isinstance(item, dict):
            members = [(Place(place, key), child, False) for key, child in item.items()]
            for member, child, _ in members:
                keys.append(_of_key(member))
                if not isinstance(child, (dict, list)):
                    keys.append(_of_text(ON, member, _literal(child)[:_KEY_READS_ON]))
            stack.extend(reversed(members))
        elif isinstance(item, list):
            stack.extend((Place(place, i), child, True) for i, child in reversed(list(enumerate(item))))
        elif isinstance(item, str):
            mark = WALL if before is None else ON if _reads_on(before, item, in_list=in_list) else WEAK
            yield _of_text(mark, place, item)
            before = item
        elif in_list:
            keys.append(_of_text(ON, place, _literal(item)))
    if keys:
        keys[0] = replace(keys[0], mark=WALL)
    yield from keys


def _of_text(mark: str, place: Place, text: str) -> Piece:
    return Piece(mark, place, text, Text.of(text))


def _of_key(member: Place) -> Piece:
    piece = _of_text(WEAK, member, str(member.token))
    piece.source.replace(CAPITAL_AFTER_SMALL, lambda capital: GAP + capital)  # what a space is elsewhere
    return piece


def _literal(leaf: bool | int | float | str | None) -> str:
    return leaf if isinstance(leaf, str) else json.dumps(leaf)


def _reads_on(before: str, after: str, *, in_list: bool) -> bool:
    """Whether a reader takes `after` for the rest of a sentence that `before` began.

    Not where a sentence ended, a one-word field ended ("status": "no"), or a capital starts another; capitals
    throughout are one sentence. A long phrase is found over any seam: see WEAK.
    """
    ended = before.rstrip().rstrip("\"'”’»)]}*_`")
    if ended.endswith((".", "!", "?", ":", ";", "…", "。", "！", "？")):
        return False
    if not in_list and len(before.split(None, 2)) < 2:
        return False
    first = _FIRST_LETTER.search(after)
    if first is None or not first[0].isupper():
        return True
    return ended[-1:].isupper() and after[first.start() : first.start() + 2].isupper()
