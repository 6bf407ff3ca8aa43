"""Strict JSON: what `json.loads` forgives is refused here.

`json.loads` takes NaN and Infinity, turns 1e999 into inf, keeps the last of duplicate keys, raises
RecursionError on deep nesting and ValueError on a 5,000-digit integer (all measured). A gate that
reads one value where a person reads another is no gate; nor is one where the box reads what the laptop
refuses, so depth and digits have limits of their own: Python's differ by version, setting and call depth.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any, NoReturn

Json = bool | int | float | str | None | list["Json"] | dict[str, "Json"]

BOM = "\ufeff"

MAX_DEPTH = 100  # arrays and objects within each other; a draft needs three
MAX_DIGITS = 640  # of an integer: the least that any Python can be told to read


class NotStrictJson(ValueError):
    """The text is not JSON as RFC 8259 has it, read strictly; the message says why and where.

    `rule` is the rule that it breaks, in words that don't depend on the version of Python; '' where it is the
    grammar itself, of which each version words and places its complaint in its own way.
    """

    def __init__(self, message: str, *, rule: str = "") -> None:
        super().__init__(message)
        self.rule = rule


def parse(text: str) -> Json:
    """Read one JSON value.

    Raises NotStrictJson for anything but exactly one value with white space around it, and for NaN,
    Infinity, numbers that overflow a float, duplicate keys, a byte order mark and extreme nesting.
    """
    if text.startswith(BOM):
        raise _broken("starts with a byte order mark")
    if _depth(text) > MAX_DEPTH:
        raise _broken("is nested too deeply")
    try:
        value: Json = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise NotStrictJson(f"{error.msg} at line {error.lineno} column {error.colno}") from error
    return value


def _broken(rule: str) -> NotStrictJson:
    return NotStrictJson(rule, rule=rule)


def _depth(text: str) -> int:
    """How deep the text nests, strings left aside; no more than a guess where it is not JSON."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0
    depth = deepest = 0
    for token in _NESTING.finditer(text):
        mark = token[0]
        if mark in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in "]}":
            depth -= 1
    return deepest


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = counts.most_common(1)[0][0]
        raise _broken(f"has the key {json.dumps(twice)} twice in one object")
    return found


def _float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _broken(f"holds the number {digits[:40]}, which is too large")
    return number


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _broken("holds a number with too many digits")
    return int(digits)


def _constant(name: str) -> NoReturn:
    raise _broken(f"holds {name}, which is not JSON")


# A string as a whole, or one bracket. The closing quote is optional, so that no attempt fails and starts over: linear.
_NESTING = re.compile(r'"(?:[^"\\]+|\\.)*"?|[\[\]{}]', re.DOTALL)
_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_int=_integer, parse_constant=_constant)
