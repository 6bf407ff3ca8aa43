"""Strict JSON: what `json.loads` forgives is refused here.

`json.loads` takes NaN and Infinity, turns 1e999 into inf, keeps the last of duplicate keys, raises
RecursionError on deep nesting and ValueError on a 5,000-digit integer (all measured). A gate that
reads one value where a person reads another is no gate.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, NoReturn

Json = bool | int | float | str | None | list["Json"] | dict[str, "Json"]

BOM = "\ufeff"


class NotStrictJson(ValueError):
    """The text is not JSON as RFC 8259 has it, read strictly; the message says why and where."""


def parse(text: str) -> Json:
    """Read one JSON value.

    Raises NotStrictJson for anything but exactly one value with white space around it, and for NaN,
    Infinity, numbers that overflow a float, duplicate keys, a byte order mark and extreme nesting.
    """
    if text.startswith(BOM):
        raise NotStrictJson("starts with a byte order mark")
    try:
        value: Json = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise NotStrictJson(f"{error.msg} at line {error.lineno} column {error.colno}") from error
    except RecursionError as error:
        raise NotStrictJson("is nested too deeply") from error
    except NotStrictJson:
        raise
    except ValueError as error:
        raise NotStrictJson("holds a number with too many digits") from error
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = counts.most_common(1)[0][0]
        raise NotStrictJson(f"has the key {json.dumps(twice)} twice in one object")
    return found


def _float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise NotStrictJson(f"holds the number {digits[:40]}, which is too large")
    return number


def _constant(name: str) -> NoReturn:
    raise NotStrictJson(f"holds {name}, which is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant)
