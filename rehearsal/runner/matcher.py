"""Finds forbidden phrases in a reply, whatever they are dressed up as. Pure.

Every text is brought into a few *readings*: as it stands, and with escapes, entities, tags and links
resolved; where it holds them, also with letters by their look ("Ν" as N) and with figures for letters
("i$$ued"). A reading is lower-case letters and digits with marks between them:

    ' '           a gap for certain: white space
    JOIN, GAP     perhaps a gap: invisible characters, apostrophes, emphasis (JOIN); other punctuation (GAP)
    WALL          nothing reads on over it
    WEAK          only a long phrase reads on over it
    ON            a new JSON value that a reader reads on to
    HUMP          between small letter and capital, as in refundIssued: JOIN, but no edge of a phrase of one word

A phrase is searched by its letters alone, which costs one `in` a phrase; the marks then decide whether the
letters stand there as whole words. Perhaps-gaps are gaps or nothing, whichever suits, so one reading serves
any mixture of dodges. All steps are linear in the length of the text: single-pass patterns without nested
repetition, at most MAX_ROUNDS rounds of decoding, and a look at each hit of a phrase's letters.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from html.entities import html5
from itertools import accumulate, pairwise
from operator import eq, is_not, itemgetter

from rehearsal.runner import strict_json
from rehearsal.runner.confusables import LOOKALIKES, STYLISED, WRITTEN_OUT
from rehearsal.runner.strict_json import Json

# Part of the policy hash: raise it with every change of what is found.
MATCHER_VERSION = 1

# From this many letters on, a phrase is also found with its gaps in the wrong places ("refundhas beenis
# sued"). Shorter, "no refund" would be found in "piano refunds" (measured: PITFALLS, "Matching text").
LONG_PHRASE = 12

# Encodings inside encodings are undone this many times: JSON in JSON in HTML is three.
MAX_ROUNDS = 4

EXCERPT_SIDE = 60
EXCERPT_HIT = 300

JOIN, GAP, WALL, WEAK, ON, HUMP = "\x01", "\x02", "\x03", "\x04", "\x05", "\x06"
_BETWEEN = frozenset(" " + JOIN + GAP + ON + WEAK + HUMP)
_EDGES = _BETWEEN | {WALL}
_OWN_MARKS = re.compile("[\x01-\x06]")


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
        self._phrases = [(phrase, _forms(phrase)) for phrase in dict.fromkeys(phrases)]
        # With these a phrase can stand in JSON's notation and not in the values ('"paid": 4.50').
        self._needs_raw = any(_NOTATION.search(phrase) for phrase in phrases)

    def find(self, raw_reply: str, value: Json) -> list[Finding]:
        """Every phrase in every place, in the order of the phrases, then of the reply.

        `value` is the reply decoded, or None where it is not JSON. Looks in every key and string value at any
        depth, over the seam of two values that a reader would read on, and in the raw reply. At most one
        finding for a phrase and pointer; the raw reply is reported only where no value holds the phrase.
        """
        document = list(_pieces(value)) if value is not None else []
        if self._needs_raw or not _says_no_more_than(raw_reply, value):
            document.append(_raw_piece(raw_reply, is_json=value is not None))
        readings = list(_readings(document))
        return [finding for phrase, forms in self._phrases for finding in _findings(phrase, forms, document, readings)]


def normalise(text: str) -> str:
    """Text as lower-case words of letters and digits with one space between them; '' if it holds none.

    Escapes, entities and markup are resolved, accents and invisible characters gone, look-alikes read as
    ASCII. Idempotent. The same steps make the readings that phrases are found in.
    """
    clean = _sanitised(text)
    return _words(_decode(_Text(clean)).text) or _words(clean)


def is_blank(text: str) -> bool:
    """Whether a reader would see nothing: white space, invisible and control characters only."""
    return all(c.isspace() or c in _BLANK or unicodedata.category(c) in ("Cc", "Cf", "Cs", "Cn") for c in text)


def _words(text: str) -> str:
    spaced = _joints(text).translate(_FOLD).replace(JOIN, "").replace(HUMP, "").replace(GAP, " ")
    return _STRAY_MARKS.sub("", " ".join(spaced.split()))


# --- Characters -----------------------------------------------------------------------------------


def _characters(*ranges: tuple[int, int]) -> Iterator[str]:
    return (chr(point) for first, last in ranges for point in range(first, last + 1))


# Default_Ignorable_Code_Point of Unicode's DerivedCoreProperties, and the blanks that are no white space.
# fmt: off
_BLANK = frozenset(_characters(
    (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F),
    (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x2800, 0x2800), (0x3164, 0x3164),
    (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0), (0xFFF0, 0xFFFB), (0x1BCA0, 0x1BCA3), (0x1D159, 0x1D159),
    (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
))
# In these scripts a mark is a vowel and part of the spelling; elsewhere it is an accent and goes.
_SPELLING_MARKS = frozenset(c for c in _characters(
    (0x900, 0x109F), (0x1712, 0x17DD), (0x1920, 0x1AAD), (0x1B00, 0x1C37), (0xA802, 0xABED),
) if unicodedata.category(c) in ("Mn", "Mc") and c not in _BLANK)
# fmt: on
_APOSTROPHES = frozenset("'‘’‚‛ʹʻʼʽˈ′‵´`＇ꞌ")
_EMPHASIS = frozenset("*~\\")
# Signs that decompose into letters or digits and yet only hang on a word.
_HANGERS = frozenset("™℠ªº⁰¹²³⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉")
_LOOKS = {c: letter for table in (STYLISED, LOOKALIKES) for letter, row in table.items() for c in row}
# And the same letters in the other case, which may look like nothing in ASCII.
_WITH_LOOKS = {other for c in _LOOKS for other in (c, c.lower(), c.upper()) if len(other) == 1 and other > "\x7f"}
# Scripts written without spaces, where any letter may begin a word: Thai to Myanmar, Khmer, kana, Han.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]")


class _Table(dict[int, str]):
    """For `str.translate`: what a character is in a reading, worked out once for each that occurs.

    How a look-alike is read is `look`'s answer, or None for "as itself". All tables give the same lengths.
    """

    def __init__(self, look: Callable[[str], str | None]) -> None:
        super().__init__()
        self._look = look

    def __missing__(self, point: int) -> str:
        self[point] = found = self._read(chr(point))
        return found

    def _read(self, c: str) -> str:
        if c in "\x01\x02\x03\x04\x05\x06 ":
            return c
        if c in _APOSTROPHES or c in _EMPHASIS or c in _HANGERS or c in _BLANK:
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
    """One letter for capital and small alike, so that case never matters, in whatever script."""
    return _LOOKS.get(c.upper()) or _LOOKS.get(c.lower()) or _LOOKS.get(c)


_FOLD = _Table(_by_case)
_LOOK = _Table(_LOOKS.get)
_AS_IS = _Table(lambda _: None)
_LOOK_DIFFERS = re.compile("[" + "".join(c for c in _WITH_LOOKS if _by_case(c) != _LOOKS.get(c)) + "]")


# --- Text -----------------------------------------------------------------------------------------


@dataclass
class _Text:
    """A text after steps of replacement; what each did: (new start, new end, old start, old end)."""

    text: str
    steps: list[list[tuple[int, int, int, int]]] = field(default_factory=list)

    def replace(self, pattern: re.Pattern[str], new: Callable[[str], str | None]) -> bool:
        """Replace every match by `new` of it (None leaves it); whether anything changed."""
        parts: list[str] = []
        edits: list[tuple[int, int, int, int]] = []
        done = length = 0
        for match in pattern.finditer(self.text):
            start, end = match.span()
            other = new(match[0])
            if other is None:
                continue
            length += start - done
            parts += (self.text[done:start], other)
            edits.append((length, length + len(other), start, end))
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


def _before(edits: list[tuple[int, int, int, int]], position: int) -> tuple[int, int]:
    nearest = bisect_right(edits, position, key=itemgetter(0)) - 1
    if nearest < 0:
        return position, position + 1
    _, new_end, old_start, old_end = edits[nearest]
    if position < new_end:
        return old_start, old_end
    return old_end + position - new_end, old_end + position - new_end + 1


def _sanitised(text: str) -> str:
    """The text without the characters that serve as marks here; NUL is read as they would be."""
    return _OWN_MARKS.sub("\0", text)


_HEX = "[0-9a-fA-F]"
_MARKS_CLASS = f"[{''.join(sorted(_SPELLING_MARKS))}]"
# Each alternative looks back at the one character before it, so that the engine can skip ahead to those.
_ENCODED = re.compile(
    r"[\\&%=](?:"
    rf"(?<=\\)(?:u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}|u\{{{_HEX}{{1,6}}\}}|u{_HEX}{{4}}|U{_HEX}{{8}}"
    rf"|x{_HEX}{{2}}|[bfnrtv]|[^\w\s])"
    rf"|(?<=&)(?:#0*[0-9]{{1,7}}|#[xX]0*{_HEX}{{1,6}}|[A-Za-z][A-Za-z0-9]{{1,31}});?"
    rf"|(?<=%)(?:u{_HEX}{{4}}|{_HEX}{{2}}(?:%{_HEX}{{2}})*)"
    rf"|(?<==)(?:[ \t]*\r?\n|{_HEX}{{2}}(?:={_HEX}{{2}})*)"
    ")"
)
_MARKUP = re.compile(
    r"[<\]\[\u202e](?:"
    r"(?<=<)(?:!--.{0,300}?-->|[!/?A-Za-z][^<>]*>)"
    r"|(?<=\])(?:\([^()]*(?:\([^()]*\)[^()]*)?\)|\[[^\[\]]*\])"
    r"|(?<=\[)(?:\^?[0-9]{1,3}\]|\^[\w-]{1,30}\])"
    r"|(?<=\u202e)[^\u202c\u2069\r\n]*"
    ")",
    re.DOTALL,
)
_STRAY_MARKS = re.compile(f"(?<=[A-Za-z0-9]){_MARKS_CLASS}+")
_DECODABLE = re.compile(r"[&<%\\=\[\u202e]")
_INLINE_TAG = re.compile(
    r"<(?:!--|/?(?:a|abbr|b|big|code|em|font|i|ins|kbd|mark|s|small|span|strong|sub|sup|tt|u|wbr)\b)",
    re.IGNORECASE,
)


def _decode(source: _Text) -> _Text:
    """What a reader would see: encodings undone, markup taken out. The source itself where it has neither."""
    encoded = _DECODABLE.search(source.text)
    marked = not source.text.isascii() and _STRAY_MARKS.search(source.text)
    if not encoded and not marked:
        return source
    result = _Text(source.text, list(source.steps))
    for _ in range(MAX_ROUNDS):
        if not result.replace(_ENCODED, _decoded):
            break
        result.text = _sanitised(result.text)
    result.replace(_MARKUP, _unmarked)
    result.replace(_STRAY_MARKS, lambda _: "")
    return result


@lru_cache(maxsize=4096)
def _decoded(code: str) -> str | None:
    if code[0] == "\\":
        return _unescaped(code[1:])
    if code[0] == "&":
        return _entity(code[1:].rstrip(";"))
    if code[1] == "u":
        return chr(int(f"0x{code[2:]}", 0))
    if code[-1] == "\n":  # quoted-printable: the line goes on
        return ""
    octets = bytes.fromhex(code.replace(code[0], ""))
    try:
        return octets.decode()
    except UnicodeDecodeError:
        letters = octets.decode("latin-1")
        return letters if letters.isalpha() else None


def _unescaped(code: str) -> str:
    """What stands after the backslash of an escape as JSON, JavaScript, Python and Markdown have them."""
    if code[0] in "uUx" and len(code) > 1:
        if len(code) == 11:
            high, low = int(code[1:5], 16), int(code[7:], 16)
            return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
        return _character(int(code[1:].strip("{}"), 16))
    return _CONTROLS.get(code, code)


_CONTROLS = {"b": " ", "f": " ", "n": "\n", "r": "\r", "t": "\t", "v": " "}


def _entity(name: str) -> str | None:
    """A character reference without '&' and ';', read as lenient as a browser reads it, or None."""
    if name[0] == "#":
        point = int(f"0{name[1:]}", 0) if name[1] in "xX" else int(name[1:])
        if 0x80 <= point <= 0x9F:  # read as Windows-1252, as HTML has it
            return bytes([point]).decode("cp1252", "replace")
        return _character(point)
    for spelling in (name, name.lower()):
        if f"{spelling};" in html5:
            return html5[f"{spelling};"]
    for end in range(len(name) - 1, 1, -1):
        if name[:end] in html5:
            return html5[name[:end]] + name[end:]
    return None


def _character(point: int) -> str:
    return chr(point) if point <= 0x10FFFF else "\ufffd"


def _unmarked(markup: str) -> str:
    if markup[0] == "\u202e":  # shown from right to left: read from the other end
        return markup[:0:-1]
    if markup[0] == "<":
        return JOIN if _INLINE_TAG.match(markup) else GAP
    return JOIN


_SIGNS = str.maketrans("@$€|!", "ase11")
_SIGN = re.compile("[@$€|!]+")
_CAPITAL_I = re.compile("I(?<=[a-z]I)(?=[a-z])")
_LONE_L = re.compile(" l(?= )")


def _figured(text: str) -> str:
    """Signs and letters as what they stand for inside a word: "i$$ued" is "issued", "wiIl" and "wi|l" "wi1l"."""

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


# Begins with the rarer character, for which the engine skips ahead, and looks back from there.
_HUMP = re.compile("[A-Z](?<=[a-z].)")
_HYPHENATED = re.compile("[-\u00ad\u00ac\u2010-\u2013\u2212\ufe63\uff0d][ \t]*\r?\n[ \t>|*]*")


def _joints(text: str) -> str:
    """Marks where only the original shows a seam: in refundIssued, and at a hyphenation."""
    text = _HUMP.sub("\x06\\g<0>", text)
    return _HYPHENATED.sub(JOIN, text) if "\n" in text else text


# --- Readings -------------------------------------------------------------------------------------


class _Node:
    """A place in the JSON value; its pointer is spelled out only when something is found there."""

    def __init__(self, parent: _Node | None = None, token: str | int = "") -> None:
        self.parent = parent
        self.token = token

    def pointer(self) -> str:
        """The JSON pointer (RFC 6901) of this place."""
        tokens: list[str] = []
        node: _Node = self
        while node.parent is not None:
            tokens.append(str(node.token).replace("~", "~0").replace("/", "~1"))
            node = node.parent
        return "".join(f"/{token}" for token in reversed(tokens))


@dataclass
class _Piece:
    """One text of the document: the mark before it, its place (None for the raw reply), its original text."""

    mark: str
    node: _Node | None
    original: str
    source: _Text


def _piece(mark: str, node: _Node, text: str) -> _Piece:
    return _Piece(mark, node, text, _Text(_sanitised(text)))


# The end of a string and what follows it in JSON's notation. After a backslash the quote is part of a text.
_STRING_END = re.compile(r'(?<!\\)"\s*[,:\]}]')
_NOTATION = re.compile(r'[0-9"\[\]{}]')


def _raw_piece(raw_reply: str, *, is_json: bool) -> _Piece:
    """The raw reply. In JSON, a string's end is no place to read on: "no", "refund" are two values."""
    source = _Text(_sanitised(raw_reply))
    if is_json:
        source.replace(_STRING_END, lambda _: WEAK)
    return _Piece(WALL, None, raw_reply, source)


def _says_no_more_than(raw_reply: str, value: Json) -> bool:
    """Whether the raw reply is this very value, so that looking at keys and values is enough."""
    try:
        return value is not None and strict_json.parse(raw_reply) == value
    except (strict_json.NotStrictJson, RecursionError):
        return False


# A key is read on into its value as far as this many characters.
_KEY_READS_ON = 200


def _pieces(value: Json) -> Iterator[_Piece]:
    """All strings in reading order, then every key with the value that it introduces."""
    keys: list[_Piece] = []
    before: str | None = None
    stack: list[tuple[_Node, Json, bool]] = [(_Node(), value, True)]
    while stack:
        node, item, in_list = stack.pop()
        if isinstance(item, dict):
            members = [(_Node(node, key), child, False) for key, child in item.items()]
            for member, child, _ in members:
                keys.append(_piece(WEAK, member, str(member.token)))
                keys[-1].source.replace(_HUMP, GAP.__add__)  # in a key it is what a space is elsewhere
                if not isinstance(child, (dict, list)):
                    keys.append(_piece(ON, member, _literal(child)[:_KEY_READS_ON]))
            stack.extend(reversed(members))
        elif isinstance(item, list):
            stack.extend((_Node(node, i), child, True) for i, child in reversed(list(enumerate(item))))
        elif isinstance(item, str):
            mark = WALL if before is None else ON if _reads_on(before, item, in_list=in_list) else WEAK
            yield _piece(mark, node, item)
            before = item
        elif in_list:
            keys.append(_piece(ON, node, _literal(item)))
    for piece in keys[:1]:
        piece.mark = WALL
    yield from keys


def _literal(leaf: bool | int | float | str | None) -> str:
    if isinstance(leaf, str):
        return leaf
    return {None: "null", True: "true", False: "false"}[leaf] if leaf is None or isinstance(leaf, bool) else repr(leaf)


_FIRST_LETTER = re.compile(r"[^\W_]")


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


class _Reading:
    """The whole document in one way of reading it."""

    def __init__(self, pieces: Sequence[_Piece], sources: Sequence[_Text], table: _Table) -> None:
        self._pieces = pieces
        self._sources = sources
        self._table = table
        document = self._document = "".join([f" {p.mark} {s.text}" for p, s in zip(pieces, sources, strict=True)])
        self._spaced = _spaced(document, table)
        within = _squeezed(self._spaced)
        everywhere = within.replace(WEAK, "")
        self._squeezed = {True: everywhere, False: within}
        self._positions: dict[bool, array[int]] = {}
        self._counts: dict[int, list[int]] = {}

    def hits(self, form: _Form) -> Iterator[tuple[int, int, int]]:
        """Where the form stands: piece, start and end in this reading; the first hit in each piece."""
        squeezed = self._squeezed[form.reads_on]
        at = squeezed.find(form.key)
        while at >= 0:
            positions = self._letters_at(over_weak=form.reads_on)
            start, end = positions[at], positions[at + len(form.key) - 1] + 1
            if self._stands(form, start, end):
                piece = self._piece_at(start)
                yield piece, start, end
                if piece + 1 == len(self._pieces):
                    return
                at = bisect_left(positions, self._starts[piece + 1])
            else:
                at += 1
            at = squeezed.find(form.key, at)

    def _letters_at(self, *, over_weak: bool) -> array[int]:
        """For every character of the squeezed text, its place in the spaced one."""
        if over_weak not in self._positions:
            dropped = _BETWEEN if over_weak else _BETWEEN - {WEAK}
            self._positions[over_weak] = array("L", [i for i, c in enumerate(self._spaced) if c not in dropped])
        return self._positions[over_weak]

    @cached_property
    def _starts(self) -> list[int]:
        """Where each piece's mark stands. (The raw reply, always the last, has marks of its own inside.)"""
        return [mark.start() for mark in _OWN_SEAMS.finditer(self._spaced)][: len(self._pieces)]

    @cached_property
    def _as_is(self) -> str:
        """The spaced text without look-alikes read as ASCII, character for character."""
        return _spaced(self._document, _AS_IS)

    def _piece_at(self, position: int) -> int:
        return bisect_right(self._starts, position) - 1

    def _stands(self, form: _Form, start: int, end: int) -> bool:
        """Whether the letters from `start` to `end` are the phrase, not by chance other words'."""
        edges = _EDGES if len(form.words) > 1 else _EDGES - {HUMP}
        opens = form.opens_anywhere or self._spaced[start - 1] in edges
        closes = form.closes_anywhere or self._spaced[end] in edges
        if not (opens and closes) and not form.is_long:
            return False
        hit = self._spaced[start:end]
        letters = _letters(hit)
        if not all(map(_may_be, letters, form.letters)):
            return False
        numbers_agree, gaps_agree = form.agrees(hit)
        if not numbers_agree:
            return False
        if form.is_long:
            return (opens and closes) or not gaps_agree
        return gaps_agree and form.has_its_letters(letters) and not self._is_foreign(form, start, end)

    def _is_foreign(self, form: _Form, start: int, end: int) -> bool:
        """Whether one word only looks like the phrase: of another script, in a sentence of that script."""
        if len(form.words) > 1 or self._document.isascii():
            return False
        word = "".join(c for c in self._as_is[start:end] if c not in _BETWEEN)
        if word == form.as_is or not all(map(_is_other_script, word)):
            return False
        around = self._as_is[max(start - EXCERPT_SIDE, 0) : start] + self._as_is[end : end + EXCERPT_SIDE]
        return any(_is_other_script(c) and c not in _CLOSE for c in around)

    def excerpt(self, start: int, end: int) -> str:
        """The original words around a hit; of both pieces where it goes over a seam."""
        first, last = self._piece_at(start), self._piece_at(end - 1)
        head, tail = self._pieces[first].original, self._pieces[last].original
        if first == last:
            return _cut(head, self._origin(first, start)[0], self._origin(first, end - 1)[1])
        before = _cut(head, self._origin(first, start)[0], len(head))
        return f"{before} … {_cut(tail, 0, self._origin(last, end - 1)[1])}"

    def _origin(self, piece: int, position: int) -> tuple[int, int]:
        """From where to where the letter at `position` stands in the original: the letters are counted."""
        letters = self._letters_at(over_weak=True)
        missing = bisect_left(letters, position) - bisect_left(letters, self._starts[piece] + 1)
        source = self._sources[piece]
        if piece not in self._counts:
            blocks = (source.text[i : i + _BLOCK] for i in range(0, len(source.text), _BLOCK))
            self._counts[piece] = list(accumulate(map(self._count, blocks), initial=0))
        block = bisect_right(self._counts[piece], missing) - 1
        missing -= self._counts[piece][block]
        place = block * _BLOCK
        while place < len(source.text) - 1 and (missing := missing - self._count(source.text[place])) >= 0:
            place += 1
        return source.origin(place)

    def _count(self, text: str) -> int:
        return len(_letters(text.translate(self._table)))


# A letter is counted in blocks of this many characters, then one by one.
_BLOCK = 512
_OWN_SEAMS = re.compile("[\x03-\x05]")


def _cut(text: str, start: int, end: int) -> str:
    """`text` from `start` to `end` with up to EXCERPT_SIDE characters each side, and no word cut in two."""
    end = min(end, start + EXCERPT_HIT)
    first, last = max(start - EXCERPT_SIDE, 0), min(end + EXCERPT_SIDE, len(text))
    before, after = text[first:start], text[end:last]
    if first and (space := _SPACE.search(before)):
        before = before[space.end() :]
    if last < len(text) and (words := after.rsplit(None, 1)):
        after = after[: len(after.rstrip()) - len(words[-1])] if len(words) > 1 or after[:1].isspace() else after
    return (before + text[start:end] + after).strip()


_SPACE = re.compile(r"\s+")


def _readings(pieces: Sequence[_Piece]) -> Iterator[_Reading]:
    """Every way to read the pieces that could say something new."""
    plain = [piece.source for piece in pieces]
    decoded = [_decode(source) for source in plain]
    new = any(map(is_not, plain, decoded))
    for sources in (plain, decoded) if new else (plain,):
        yield from _shapes(pieces, sources)
        figured = [_Text(_figured(source.text), source.steps) for source in sources]
        if figured != sources:
            yield from _shapes(pieces, figured)


def _shapes(pieces: Sequence[_Piece], sources: Sequence[_Text]) -> Iterator[_Reading]:
    yield _Reading(pieces, sources, _FOLD)
    if any(not source.text.isascii() and _LOOK_DIFFERS.search(source.text) for source in sources):
        yield _Reading(pieces, sources, _LOOK)


def _spaced(document: str, table: _Table) -> str:
    """The document as a reading: see the module's head. Runs of marks are one mark, except between pieces."""
    spaced = _RUN.sub(_one_mark, _joints(document).translate(table) + " ")
    return _SPELLED.sub(_unspelled, spaced)


_RUN = re.compile("[ \x01\x02]{2,}")
# Three single letters or more in a row are letters of a spelled-out word: perhaps no gap between them.
_SPELLED = re.compile(r" (?:[^\W_] ){3,}")


def _one_mark(run: re.Match[str]) -> str:
    return " " if " " in run[0] else JOIN


def _unspelled(run: re.Match[str]) -> str:
    return f" {run[0][1:-1].replace(' ', JOIN)} "


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
_TO_KEY: dict[str, str] = {**dict.fromkeys(_BETWEEN - {WEAK}, ""), **_ALIKE}
_TO_LETTERS: dict[str, str] = dict.fromkeys(_EDGES, "")
_ASCII_TO_KEY = str.maketrans({**_TO_KEY})
_ASCII_TO_LETTERS = str.maketrans({**_TO_LETTERS})


def _squeezed(spaced: str) -> str:
    """The letters alone, with the marks that end a search."""
    return spaced.translate(_ASCII_TO_KEY) if spaced.isascii() else _changed(spaced, _TO_KEY)


def _letters(spaced: str) -> str:
    return spaced.translate(_ASCII_TO_LETTERS) if spaced.isascii() else _changed(spaced, _TO_LETTERS)


def _changed(text: str, changes: dict[str, str]) -> str:
    """What `str.translate` does, eight times faster for a few changes in text beyond ASCII (measured)."""
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


def _may_be(letter: str, wanted: str) -> bool:
    return letter == wanted or wanted in _STANDS_FOR.get(letter, "") or letter in _STANDS_FOR.get(wanted, "")


_CLOSE = frozenset(c for row in LOOKALIKES.values() for c in row + row.lower())


def _is_other_script(c: str) -> bool:
    return c > "\x7f" and c.isalpha() and "LATIN" not in unicodedata.name(c, "")


# --- Phrases --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    """A phrase as it is searched: its letters, and before which of them a gap must or may stand."""

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
        """Whether the gaps of a hit are the phrase's: those between figures (5.0 is not 50), and all others."""
        numbers = others = True
        at, gap, visible, certain = 0, False, False, False
        for c in hit:
            if c in _BETWEEN:
                gap = True
                visible = visible or c not in (JOIN, HUMP)
                certain = certain or c not in (JOIN, GAP, HUMP)
                continue
            if at and self.letters[at - 1 : at + 1].isdecimal():
                numbers = numbers and visible == (at in self.gaps)
            elif at in self.gaps:
                others = others and gap
            elif certain and at not in self.perhaps:
                others = others and bool(_UNSPACED.match(c))
            at += 1
            gap = visible = certain = False
        return numbers, others

    def has_its_letters(self, letters: str) -> bool:
        """Whether no word consists of figures alone: "4 refund" is not "a refund"."""
        return all(any(map(eq, letters[a:b], self.letters[a:b])) for a, b in self.words)


@lru_cache(maxsize=4096)
def _forms(phrase: str) -> tuple[_Form, ...]:
    """The phrase as it stands and, if that says something else, with its markup resolved."""
    plain = _Text(_sanitised(phrase))
    forms = (_form(text, reads_on='"' in phrase) for text in (plain.text, _decode(plain).text))
    return tuple(dict.fromkeys(form for form in forms if form.letters))


def _form(text: str, *, reads_on: bool) -> _Form:
    spaced = _spaced(f" {text}", _FOLD).strip(" \x01\x02")
    letters = _letters(spaced)
    gaps, perhaps, at = set(), set(), 0
    for c in spaced:
        if c == " " or (c == GAP and letters[at - 1 : at + 1].isdecimal()):
            gaps.add(at)
        elif c in _BETWEEN:
            perhaps.add(at)
        else:
            at += 1
    edges = [0, *sorted(gaps), len(letters)]
    is_long = len(letters) >= LONG_PHRASE
    return _Form(
        letters=letters,
        as_is=_letters(text.translate(_AS_IS)),
        key=_squeezed(letters),
        gaps=frozenset(gaps),
        perhaps=frozenset(perhaps),
        words=tuple(pairwise(edges)),
        is_long=is_long,
        reads_on=is_long or reads_on,
        opens_anywhere=bool(_UNSPACED.match(letters[:1])),
        closes_anywhere=bool(_UNSPACED.match(letters[-1:])),
    )


def _findings(
    phrase: str, forms: Sequence[_Form], pieces: Sequence[_Piece], readings: Sequence[_Reading]
) -> list[Finding]:
    """A phrase's findings: one for each pointer, or one for the raw reply where no value holds the phrase."""
    found: dict[str, tuple[int, Finding]] = {}
    raw: list[Finding] = []
    for reading in readings:
        for form in forms:
            for number, start, end in reading.hits(form):
                node = pieces[number].node
                if node is None:
                    raw = raw or [Finding(phrase, "", reading.excerpt(start, end))]
                elif (pointer := node.pointer()) not in found:
                    found[pointer] = number, Finding(phrase, pointer, reading.excerpt(start, end))
    return [finding for _, finding in sorted(found.values(), key=itemgetter(0))] or raw
