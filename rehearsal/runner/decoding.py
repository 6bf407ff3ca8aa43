"""What a reader would see of a text: encodings undone, markup taken out.

All patterns are single-pass, without nested repetition, and tried MAX_ROUNDS times at most: linear time.
"""

from __future__ import annotations

import re
from functools import lru_cache
from html.entities import html5

from rehearsal.runner.characters import GAP, JOIN, STRAY_MARKS
from rehearsal.runner.text import Text, sanitised

# Encodings inside encodings are undone this many times: JSON in JSON in HTML is three.
MAX_ROUNDS = 4

_DECODABLE = re.compile(r"[&<%\\=\[\u202e]")

_HEX = "[0-9a-fA-F]"
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
_INLINE_TAG = re.compile(
    r"<(?:!--|/?(?:a|abbr|b|big|code|em|font|i|ins|kbd|mark|s|small|span|strong|sub|sup|tt|u|wbr)\b)",
    re.IGNORECASE,
)
_CONTROLS = {"b": " ", "f": " ", "n": "\n", "r": "\r", "t": "\t", "v": " "}


def decode(source: Text) -> Text:
    """The text as a reader would see it, with the way back to the original; `source` itself if nothing is hidden.

    Undone are escapes of JSON, JavaScript, Python and Markdown, character references, percent-encoding and
    quoted-printable. Out go tags, comments, link targets, footnotes and stray marks: JOIN or GAP takes their place.
    """
    if not _DECODABLE.search(source.text) and (source.text.isascii() or not STRAY_MARKS.search(source.text)):
        return source
    result = source.copy()
    for _ in range(MAX_ROUNDS):
        if not result.replace(_ENCODED, _decoded):
            break
        result.text = sanitised(result.text)
    result.replace(_MARKUP, _unmarked)
    result.replace(STRAY_MARKS, lambda _: "")
    return result


@lru_cache(maxsize=4096)
def _decoded(code: str) -> str | None:
    if code[0] == "\\":
        return _unescaped(code[1:])
    if code[0] == "&":
        return _entity(code[1:].rstrip(";"))
    if code[1] == "u":
        return chr(int(code.lstrip("%u"), 16))
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


def _entity(name: str) -> str | None:
    """A character reference without '&' and ';', read as lenient as a browser reads it, or None."""
    if name[0] == "#":
        point = int(name.lstrip("#xX"), 16) if name[1] in "xX" else int(name[1:])
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
