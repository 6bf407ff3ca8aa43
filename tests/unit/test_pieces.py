"""The texts of a reply, their places, and how a reader gets from one to the next."""

import json

import pytest

from rehearsal.runner.characters import GAP, ON, WALL, WEAK
from rehearsal.runner.matcher import Matcher
from rehearsal.runner.pieces import pieces

LONG = "refund has been issued"
SHORT = "no refund"


def test_strings_come_first_in_reading_order_then_keys_with_what_they_introduce_then_the_raw_reply():
    value = {"aKey": "We say", "b": [1, "and go on"], "c": None}
    found = pieces("{}", value, with_raw=False)
    assert [(p.mark, p.place.pointer() if p.place else None, p.source.text) for p in found] == [
        (WALL, "/aKey", "We say"),
        (ON, "/b/1", "and go on"),
        (WALL, "/aKey", f"a{GAP}Key"),
        (ON, "/aKey", "We say"),
        (WEAK, "/b", "b"),
        (WEAK, "/c", "c"),
        (ON, "/c", "null"),
        (ON, "/b/0", "1"),
        (WALL, None, "{}"),
    ]


def test_the_raw_reply_is_looked_at_only_where_it_may_say_more_than_the_value():
    def looked_at(raw, value, *, with_raw=False):
        return [p.original for p in pieces(raw, value, with_raw=with_raw) if p.place is None]

    assert looked_at('{"a": 1}', {"a": 1}) == []
    for args in [('{"a": 1}', {"a": 2}), ("no JSON", None), ('{"a": 1, "a": 1}', {"a": 1})]:
        assert looked_at(*args) == [args[0]]
    assert looked_at('{"a": 1}', {"a": 1}, with_raw=True) == ['{"a": 1}']


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        (LONG, ""),
        ({"a": LONG}, "/a"),
        ({"a": {"b": [1, None, LONG]}}, "/a/b/2"),
        ({"x/y": {"~z": [LONG]}}, "/x~1y/~0z/0"),
        ({LONG: 1}, f"/{LONG}"),
        ({"a": {"refundHasBeenIssued": True}}, "/a/refundHasBeenIssued"),
        ({"refund": "has been issued"}, "/refund"),
        ({"id": 7, "refundHasBeen": {"issued": 1}, "a": [{"refundHasBeen": "issued"}]}, "/a/0/refundHasBeen"),
        ({"the refund has been": ["x"], "b": {"issued": 1}}, None),
        ({"a": "refund has been", "b": "issued today"}, "/a"),
        ({"a": "refund has been", "n": 0.5, "b": "issued today"}, "/a"),
        ({"a": ["our refund", "has been", "issued"]}, "/a/0"),
        ({"a": "REFUND HAS.", "b": {"c": "Been issued"}}, "/a"),
        ([[[[LONG]]]], "/0/0/0/0"),
    ],
)
def test_the_pointer_names_the_value_or_the_member(value, pointer):
    found = Matcher([LONG]).find(json.dumps(value), value)
    assert [finding.pointer for finding in found] == ([] if pointer is None else [pointer])


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"a": "we give no", "b": "refund here"}, True),
        ({"a": "WE GIVE NO", "b": "REFUND HERE"}, True),
        (["no", "refund"], True),
        ({"a": "no", "b": "refund"}, False),
        ({"status": "no", "refund": "pending"}, False),
        ({"a": "He said no.", "b": "refund it"}, False),
        ({"a": "He said “no!”", "b": "refund it"}, False),
        ({"a": "The customer says no", "b": "Refund questions go to billing"}, False),
        ({"a": "the answer is no", "refund": 1}, False),
    ],
)
def test_a_short_phrase_is_read_over_a_seam_only_where_a_reader_would(value, found):
    assert bool(Matcher([SHORT]).find(json.dumps(value), value)) is found
    assert bool(Matcher([SHORT]).find(json.dumps(value, indent=2), value)) is found
    # Also where the raw reply has to be looked at, because it isn't this JSON and nothing else.
    assert bool(Matcher([SHORT]).find(f"```json\n{json.dumps(value)}\n```", value)) is found


@pytest.mark.parametrize(
    ("phrase", "raw"),
    [
        ('"refunded": true', '{"refunded": true}'),
        ('": 1', '{"a": 1}'),
        ("4.50", '{"amount": 4.50}'),
        ("1e3", '{"amount": 1e3}'),
        ('no", "refund', '["no", "refund"]'),
        ("null, null", '{"a": [null, null]}'),
        ("true", '{"a": true}'),
    ],
)
def test_a_phrase_in_the_notation_of_json_is_found(phrase, raw):
    assert Matcher([phrase]).find(raw, json.loads(raw))


def test_deep_nesting_is_no_obstacle():
    value = LONG
    for _ in range(20_000):
        value = [value]
    [finding] = Matcher([LONG]).find("[", value)
    assert finding.pointer == "/0" * 20_000


def test_a_single_word_is_found_in_a_compound_key():
    value = {"order": {"shippedAt": "today", "isShipped": 1, "not_shipped": 0}}
    found = Matcher(["shipped"]).find(json.dumps(value), value)
    assert [(f.pointer, f.excerpt) for f in found] == [
        ("/order/shippedAt", "shippedAt"),
        ("/order/isShipped", "isShipped"),
        ("/order/not_shipped", "not_shipped"),
    ]
