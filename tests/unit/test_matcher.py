"""The matcher finds a forbidden phrase in every dress of it, and in no harmless neighbour."""

import html
import importlib
import json
import re
import re._parser as sre  # to look at the patterns' structure
import sys
import unicodedata
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rehearsal.runner.matcher import Finding, Matcher, is_blank, normalise
from rehearsal.runner.text import EXCERPT_SIDE

LONG = "refund has been issued"
SHORT = "no refund"
BEFORE = "Thank you for writing to us about the duplicate capture on your invoice, we looked at it and your "
AFTER = " and our billing team will look at the second charge within two business days of this message."


def mathematical(text: str, first: int) -> str:
    return "".join(chr(first + ord(c) - ord("a")) if "a" <= c <= "z" else c for c in text)


def by_name(text: str, pattern: str) -> str:
    return "".join(unicodedata.lookup(pattern.format(c.upper())) if c.isalpha() else c for c in text)


def between_letters(text: str, mark: str) -> str:
    return " ".join(mark.join(word) for word in text.split())


SPACES = "\t\n\v\f\r\x1c\x85\xa0\u1680\u2000\u2003\u2007\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
INVISIBLE = (
    "\xad\u034f\u061c\u115f\u1160\u17b4\u180b\u180e\u200b\u200c\u200d\u200e\u2060\u2063\u206a\u2800\u3164"
    "\ufe00\ufe0f\ufeff\uffa0\ufff9\U000e0001\U000e0041\U000e0100\U0001d173\x00\x01\x02\x03\x04\x05\x06\x08\x7f"
)
DASHES = "-\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u2043\ufe58\ufe63\uff0d"

# Kind: the dodge of a text. Each is tried on the long phrase and, unless it is named below, on the short one.
DODGES = {
    "plain": [str, str.upper, str.title, lambda t: t.swapcase().capitalize()],
    "capitals inside": [lambda t: "".join(c.upper() if i % 2 else c for i, c in enumerate(t))],
    "spaces": [lambda t, c=c: t.replace(" ", c) for c in SPACES] + [lambda t: t.replace(" ", " \r\n\t ")],
    "invisible inside": [lambda t, c=c: between_letters(t, c) for c in INVISIBLE],
    "invisible between": [lambda t, c=c: t.replace(" ", c) for c in INVISIBLE],
    "invisible both": [lambda t, c=c: c.join(t.replace(" ", c)) for c in "\u200b\u2060\xad"],
    "compatibility": [
        lambda t: mathematical(t, 0xFF41),
        *(lambda t, f=f: mathematical(t, f) for f in (0x1D41A, 0x1D4EA, 0x1D586, 0x1D5BA, 0x1D68A)),
        lambda t: mathematical(t, 0x24D0),
        lambda t: mathematical(t, 0x249C),
        lambda t: mathematical(t.upper(), 0x1F130 + 0x20),
        lambda t: t.replace("f", "ſ").replace("ſ", "f").replace("s", "ſ"),
    ],
    "enclosed": [
        lambda t: by_name(t, "NEGATIVE CIRCLED LATIN CAPITAL LETTER {}"),
        lambda t: by_name(t, "NEGATIVE SQUARED LATIN CAPITAL LETTER {}"),
        lambda t: by_name(t, "SQUARED LATIN CAPITAL LETTER {}"),
        lambda t: " ".join("\u200b".join(by_name(w, "REGIONAL INDICATOR SYMBOL LETTER {}")) for w in t.split()),
    ],
    "small capitals": [lambda t: t.translate(str.maketrans("refundhabio", "ʀᴇꜰᴜɴᴅʜᴀʙɪᴏ"))],
    "marks": [lambda t, m=m: between_letters(t, m) + m for m in "\u0301\u0336\u0338\u0489\u20dd\u05b4\u064b\u093f"]
    + [lambda t: unicodedata.normalize("NFC", between_letters(t, "\u0308"))],
    "strokes": [lambda t: t.replace("d", "đ").replace("u", "ʉ").replace("o", "ø")],
    "Cyrillic": [lambda t: t.translate(str.maketrans("aeosiun", "аеоѕіun")), lambda t: t.replace("e", "Е")],
    "Greek": [
        lambda t: t.translate(str.maketrans("eoniu", "εοnιυ")),
        lambda t: t.upper().translate(str.maketrans("ENOHBI", "ΕΝΟΗΒΙ")),
        lambda t: t.translate(str.maketrans("nu", "ημ")),
    ],
    "Armenian": [lambda t: t.translate(str.maketrans("nouh", "ոօսհ"))],
    "Canadian": [lambda t: t.translate(str.maketrans("refund", "ᖇᗴᖴᑌᑎᗪ"))],
    "entities": [
        html.escape,
        lambda t: "".join(f"&#{ord(c)};" for c in t),
        lambda t: "".join(f"&#x{ord(c):X};" for c in t),
        lambda t: "".join(f"&#00{ord(c)};" for c in t),
        lambda t: t.replace(" ", "&nbsp;"),
        lambda t: t.replace(" ", "&nbsp"),
        lambda t: t.replace(" ", "&NewLine;"),
        lambda t: t.replace("f", "&shy;f"),
        lambda t: t.replace("e", "&eacute;"),
        lambda t: t.replace("u", "&amp;#117;"),
        lambda t: t.replace("u", "&amp;amp;#117;"),
        lambda t: t.replace("o", "&#x6f;").replace("e", "&#101;"),
    ],
    "tags": [
        lambda t: f"<b>{t}</b>",
        lambda t: t.replace("fund", "<b>fund</b>"),
        lambda t: t.replace(" ", "<br/>"),
        lambda t: t.replace(" ", '</td><td class="x">'),
        lambda t: t.replace("fu", "f<!-- x > y -->u"),
        lambda t: t.replace("fund", '<span style="a:b">fu</span><i>nd</i>'),
        lambda t: t.replace("fund", "&lt;i&gt;fund&lt;/i&gt;"),
        lambda t: f'<a title="{t}">here</a>',
    ],
    "Markdown": [
        lambda t: f"**{t}**",
        lambda t: t.replace("refund", "**refund**"),
        lambda t: t.replace("fund", "**fund**"),
        lambda t: t.replace("fund", "_f_und"),
        lambda t: t.replace("refund", "~~re~~fund"),
        lambda t: t.replace("refund", "`refund`"),
        lambda t: t.replace("refund", "[refund](https://example.org/a_(b) 'title')"),
        lambda t: t.replace("refund", "[refund][1]"),
        lambda t: t.replace("fund", "[fund](x)"),
        lambda t: t.replace(" ", "[^1] "),
        lambda t: t.replace(" ", " [1] "),
        lambda t: t.replace(" ", " | "),
        lambda t: t.replace(" ", "|"),
        lambda t: t.replace(" ", "\n> "),
        lambda t: t.replace(" ", "\n- "),
        lambda t: t.replace("fu", "f\\u"),
        lambda t: t.replace(" ", "\\_"),
        lambda t: f"```\n{t}\n```",
    ],
    "JSON escapes": [
        lambda t: "".join(f"\\u{ord(c):04x}" for c in t),
        lambda t: "".join(f"\\\\u{ord(c):04X}" for c in t),
        lambda t: t.replace(" ", "\\n"),
        lambda t: t.replace(" ", "\\\\n"),
        lambda t: t.replace(" ", "\\t\\r\\n"),
        lambda t: t.replace("u", "\\x75"),
        lambda t: t.replace("u", "\\u{75}"),
        lambda t: t.replace("u", "\\ud835\\udc2e"),
        lambda t: json.dumps(json.dumps(t.replace(" ", "\n"))),
    ],
    "percent": [
        quote,
        lambda t: "".join(f"%{ord(c):02x}" for c in t),
        lambda t: t.replace(" ", "%C2%A0"),
        lambda t: t.replace(" ", "+"),
        lambda t: t.replace("u", "%u0075"),
        lambda t: t.replace(" ", "%2520"),
    ],
    "quoted-printable": [
        lambda t: t.replace(" ", "=20"),
        lambda t: t.replace("fu", "f=\nu"),
        lambda t: t.replace(" ", " =\r\n"),
        lambda t: t.replace("u", "=C3=BC"),
        lambda t: t.replace("u", "=FC"),
        lambda t: "".join(f"={ord(c):02X}" for c in t),
    ],
    "hyphenation": [
        lambda t: t.replace("fu", "f-\nu"),
        lambda t: t.replace("fu", "f- \r\n  u"),
        lambda t: t.replace("fu", "f-\n> u"),
        lambda t: t.replace("fu", "f\u2010\nu"),
        lambda t: t.replace("fu", "f\xad\nu"),
        lambda t: t.replace("fu", "f-\\nu"),
    ],
    "dashes": [lambda t, c=c: t.replace(" ", c) for c in DASHES]
    + [lambda t, c=c: t.replace("fu", f"f{c}u") for c in DASHES],
    "spelled out": [
        lambda t: "   ".join(" ".join(word) for word in t.split()),
        lambda t: " ".join(t.replace(" ", "")),
        lambda t: between_letters(t, "."),
        lambda t: between_letters(t, "-"),
        lambda t: between_letters(t, "_"),
        lambda t: " - ".join(t.replace(" ", "")),
        lambda t: "\n".join(t.replace(" ", "")),
        lambda t: t.replace("refund", "r e f u n d"),
    ],
    "punctuation": [
        lambda t, c=c: t.replace(" ", c) for c in (", ", ". ", "... ", "/", "_", ";", " & ", " “", "”", "·")
    ]
    + [
        lambda t: f"“{t}”",
        lambda t: f"({t})",
        lambda t: f"«{t}»!!",
        lambda t: f"#{t}",
        lambda t: t.replace(" ", " 🎉 "),
    ],
    "figures": [
        lambda t: t.translate(str.maketrans("oei", "031")),
        lambda t: t.translate(str.maketrans("aes", "435")),
        lambda t: t.translate(str.maketrans("aesi", "@3$!")),
        lambda t: t.replace("i", "|").replace("s", "$"),
        lambda t: t.replace("e", "€"),
        lambda t: between_letters(t.replace("e", "€"), "\u200b"),
        lambda t: t.replace("e", "<b>€</b>"),
    ],
    "bidi": [
        lambda t: f"\u202a{t}\u202c",
        lambda t: f"\u2067{t}\u2069",
        lambda t: t.replace("fu", "f\u200fu"),
        lambda t: f"\u202e{t[::-1]}\u202c",
    ],
    "footnotes": [lambda t: t.replace(" ", "¹ "), lambda t: t.replace(" ", "™ ")],
    "joined words": [
        lambda t: "".join(word.capitalize() for word in t.split()),
        lambda t: t.replace(" ", "_"),
        lambda t: t.split()[0] + "".join(word.capitalize() for word in t.split()[1:]),
    ],
}
ALL_DODGES = [
    pytest.param(phrase, dodge, id=f"{kind}-{i}-{'long' if phrase == LONG else 'short'}")
    for kind, dodges in DODGES.items()
    for i, dodge in enumerate(dodges)
    for phrase in (LONG, SHORT)
]


def find(phrase: str, text: str) -> list[Finding]:
    """Findings in a reply that holds the text in one value; its raw form hides it like a real reply's."""
    value = {"reply": text}
    return Matcher([phrase]).find(json.dumps(value), value)


@pytest.mark.parametrize(("phrase", "dodge"), ALL_DODGES)
def test_a_dodge_is_found_in_a_value_in_plain_text_and_in_broken_json(phrase, dodge):
    hidden = dodge(phrase)
    text = f"{BEFORE}{hidden}{AFTER}"
    [finding] = find(phrase, text)
    assert (finding.phrase, finding.pointer) == (phrase, "/reply")
    assert finding.excerpt in text
    assert hidden.strip() in finding.excerpt
    assert len(finding.excerpt) <= len(hidden) + 2 * EXCERPT_SIDE
    assert finding.excerpt.startswith(BEFORE[-EXCERPT_SIDE:].split(" ", 1)[1]) or hidden.startswith("<a")
    [finding] = Matcher([phrase]).find(text, None)
    assert finding.pointer == ""
    assert hidden.strip() in finding.excerpt
    broken = json.dumps({"reply": text})[:-1]
    assert [f.pointer for f in Matcher([phrase]).find(broken, None)] == [""]


@pytest.mark.parametrize(
    "text",
    [
        "refundhasbeenissued",
        "yourrefundhasbeenissuedtoday",
        "ref und has be en iss ued",
        "yo urref undha sbeen issuedto day",
    ],
)
def test_a_long_phrase_is_found_with_its_gaps_in_the_wrong_places(text):
    assert find(LONG, text)


@pytest.mark.parametrize(
    ("phrase", "text"),
    [
        ("straße", "STRASSE"),
        ("strasse", "Straße"),
        ("İstanbul", "istanbul"),
        ("istanbul", "İSTANBUL"),
        ("kapalı", "KAPALI"),
        ("kapali", "kapalı"),
        ("ΟΔΟΣ", "οδος"),
        ("νέα επιστροφή", "ΝΈΑ ΕΠΙΣΤΡΟΦΉ"),
        ("возврат оформлен", "ВОЗВРАТ ОФОРМЛЕН"),
        ("zurückerstattet", "ZURÜCKERSTATTET"),
        ("zurückerstattet", unicodedata.normalize("NFD", "zurückerstattet")),
        ("remboursé", "REMBOURSE\u0301"),
        ("hasn't", "hasn’t"),
        ("hasn’t", "hasnt"),
        ("hasn't been sent", "HASNʼT BEEN SENT"),
        ("chargeback", "charge-back"),
        ("charge-back", "charge back"),
        ("charge-back", "chargeback"),
        ("e-mail", "email"),
        ("100 %", "100%"),
        ("50 percent", "5\u200b0 percent"),
        ("1,000 euro", "1.000 euro"),
        ("1,000 euro", "1 000 euro"),
        ("false", "false"),
        ("AT&T", "AT&amp;T"),
        ("10 days", "1O days"),
        ("будет возвращён", "будет возвращен"),
        ("환불", "환불"),
        ("환불", unicodedata.normalize("NFD", "환불")),
        ("退款", "已为您退款了"),
        ("退款", "退\u200b款"),
        ("คืนเงิน", "เราคืนเงินแล้ว"),
        ("हमने पैसे", "हमने पैसे दिए"),
        ("استرداد", "اِسترداد"),
        ("<refund>", "a <refund> here"),
        ("re<b>fund</b>", "refund"),
        ("r e f u n d", "refund"),
        ("æther", "aether"),
        ("x", "x"),
    ],
)
def test_phrase_and_text_are_read_alike(phrase, text):
    assert find(phrase, text)
    assert find(phrase, phrase)


@pytest.mark.parametrize(
    ("phrase", "text"),
    [
        ("free", "a freesia"),
        ("free", "carefree"),
        ("no refund", "piano refunds"),
        ("no refund", "piano refund"),
        ("no refund", "no refunds"),
        ("ship", "your shipment"),
        ("ship", "ships, shipping and shipped; a friendship"),
        ("I have already sent", "Delphi have already sent it"),
        ("refund was sent", "the refund was sentimental"),
        ("your lawsuit", "your law suits you"),
        ("fail", "they fall"),
        ("mail", "a mall"),
        ("a refund", "we processed 4 refund requests"),
        ("is it", "15 it"),
        ("50 percent", "5.0 percent"),
        ("50 percent", "5,0 percent"),
        ("1000", "10.00"),
        ("5.0 percent", "50 percent"),
        ("refund of 50 percent", "a refund of 5.0 percent"),
        ("refund of 5.0 percent", "a refund of 50 percent"),
        ("150 euro", "|50| euro"),
        ("cop", "рот и сор: вся кухня в мусоре"),
        ("cop", "Στο σορ ήταν όλα"),
        ("fun", "refund"),
        ("pay", "with PayPal or ApplePay"),
        ("fund", "re\u0301fund"),
        ("no refund", "north refund"),
        ("issued", "reissued"),
        ("refund", ""),
        ("refund", "re fund"),
        ("wired", "we wi red"),
        ("我们", "我 的 们"),
        ("हम", "हमने"),
        ("refund has been issued", "the refund request has been received and an invoice issued"),
    ],
)
def test_harmless_neighbours_pass(phrase, text):
    assert find(phrase, text) == []
    assert Matcher([phrase]).find(text, None) == []


def test_one_word_of_look_alikes_in_an_english_sentence_is_found():
    assert find("cop", "you are a сор today")
    assert find("cop", "сор")


def test_every_place_is_reported_once_and_in_the_order_of_phrases_then_places():
    value = {"b": f"{SHORT}, {SHORT} – {LONG}", "a": [SHORT, "x", "NO  REFUND"], SHORT: SHORT}
    found = Matcher([LONG, SHORT, SHORT]).find(json.dumps(value), value)
    assert [(f.phrase, f.pointer) for f in found] == [
        (LONG, "/b"),
        (SHORT, "/b"),
        (SHORT, "/a/0"),
        (SHORT, "/a/2"),
        (SHORT, f"/{SHORT}"),
    ]


def test_the_raw_reply_is_reported_only_where_no_value_holds_the_phrase():
    value = {"a": "fine"}
    assert Matcher([LONG]).find(f"{LONG} {json.dumps(value)}", value) == [Finding(LONG, "", f'{LONG} {{"a": "fine"}}')]
    value = {"a": LONG}
    assert [f.pointer for f in Matcher([LONG]).find(f"{LONG} {json.dumps(value)}", value)] == ["/a"]


def test_a_phrase_without_letters_is_never_found():
    assert Matcher(["", "…", "\u200b", "!?"]).find("… !? \u200b", "… !? \u200b") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  The REFUND\u200b has—been\nissued! ", "the refund has been issued"),
        ("hasn’t", "hasnt"),
        ("re<b>fund</b><br>now", "refund now"),
        ("&lt;p&gt;x&lt;/p&gt;", "x"),
        ("is-\nsued", "issued"),
        ("refund_issued, refundIssued", "refund issued refundissued"),
        ("1,000.50 €", "1 000 50"),
        ("Straße ﬁn", "strasse fin"),
        ("ⅷ ½", "viii 1 2"),
        ("<refund>", "refund"),
        ("٣ १", "3 1"),
        ("\u200b…!", ""),
        ("", ""),
    ],
)
def test_normalise(text, words):
    assert normalise(text) == words


@pytest.mark.parametrize("text", ["", " \t\n", SPACES, INVISIBLE, "\u2800 \u3164", "\ufdd0", "\ud800"])
def test_blank(text):
    assert is_blank(text)


@pytest.mark.parametrize("text", ["x", ".", "\u200bx", "–", "0", "💸", "&nbsp;"])
def test_not_blank(text):
    assert not is_blank(text)


# --- Properties -----------------------------------------------------------------------------------

ANY_TEXT = st.text(max_size=200)
MARKED_UP = st.text(
    alphabet="ab1lIıİßΝν &#;x<>/!-[]()^*_\\un7%=20CD@$|\n.,'\u200b\u202e\u093f\u0301\x01\x03é", max_size=80
)


@given(ANY_TEXT | MARKED_UP)
def test_normalise_is_idempotent_and_made_of_words(text):
    once = normalise(text)
    assert normalise(once) == once
    assert once == " ".join(once.split())
    assert once == once.casefold() or not once.isascii()


@given(ANY_TEXT | MARKED_UP, st.lists(ANY_TEXT | MARKED_UP, max_size=4))
def test_anything_goes_in_and_every_excerpt_is_of_the_reply(text, phrases):
    for finding in Matcher(phrases).find(text, None):
        assert finding.phrase in phrases
        assert finding.excerpt in text


LETTER_DODGES = [
    str,
    str.upper,
    str.title,
    lambda t: t.translate(str.maketrans("aeosi", "аеоѕі")),
    lambda t: mathematical(t, 0xFF41),
    lambda t: mathematical(t, 0x1D5BA),
    lambda t: t.translate(str.maketrans("oei", "031")),
    lambda t: t.translate(str.maketrans("aes", "@3$")),
    lambda t: between_letters(t, "\u200b"),
    lambda t: between_letters(t, "\u0336"),
    lambda t: between_letters(t, "\xad"),
    lambda t: between_letters(t, "."),
    lambda t: "   ".join(" ".join(word) for word in t.split(" ")),
]
SPACE_DODGES = [
    str,
    *(lambda t, c=c: t.replace(" ", c) for c in ("\xa0", "\n", "\u200b ", " \u2060", " – ", ", ", "\t\t")),
]
MARKUP_DODGES = [
    str,
    lambda t: f"**{t}**",
    lambda t: "<b>".join([t[:3], t[3:]]),
    lambda t: "</i>".join([t[:4], t[4:]]),
    lambda t: f"<p>{t}</p>",
    lambda t: f"[{t}](https://example.org)",
    lambda t: f"\u202a{t}\u202c",
    lambda t: f"| {t} |",
]
CODE_DODGES = [
    str,
    html.escape,
    lambda t: "".join(f"&#{ord(c)};" for c in t),
    lambda t: "".join(f"&#x{ord(c):x}" + ";" for c in t),
    lambda t: json.dumps(t)[1:-1],
    lambda t: quote(t, safe=""),
    lambda t: "".join(f"={octet:02X}" for octet in t.encode()),
]
PHRASES = st.sampled_from([LONG, SHORT, "your lawsuit", "I have already sent", "been wired", "we deleted your account"])
# Text of the world's scripts, without the characters that could open markup or an encoding around the phrase.
AROUND = st.text(
    st.characters(exclude_characters="<>[]()&%=\\\u202e\u200f", exclude_categories=["Cs"]), max_size=60
).filter(lambda text: not re.search(r"[a-z]", text))


@given(
    PHRASES,
    st.sampled_from(LETTER_DODGES),
    st.sampled_from(LETTER_DODGES[:7]),
    st.sampled_from(SPACE_DODGES),
    st.sampled_from(MARKUP_DODGES),
    st.lists(st.sampled_from(CODE_DODGES), max_size=2),
    AROUND,
    AROUND,
)
def test_any_mixture_of_dodges_in_any_text_is_found(phrase, inner, outer, spaces, markup, codes, before, after):
    hidden = markup(spaces(inner(outer(phrase))))
    for code in codes:
        hidden = code(hidden)
    text = f"{before} {hidden} {after}"
    assert find(phrase, text), ascii(text)
    assert Matcher([phrase]).find(text, None), ascii(text)


@given(
    st.lists(st.text("abcdefgh", min_size=1, max_size=8), min_size=1, max_size=4).map(" ".join),
    st.text("mnopqrstuvwxyz .,-*_<>&;#/\n\u200b", max_size=200),
)
def test_a_text_of_other_letters_is_never_flagged(phrase, text):
    assert find(phrase, text) == []


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab c,.ZÉ", max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab_ C", max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, st.data())
def test_whatever_the_article_finds_on_word_boundaries_is_found(value, data):
    blob = json.dumps(value)
    start = data.draw(st.integers(0, len(blob)))
    needle = blob[start : data.draw(st.integers(start, len(blob)))]
    word = re.compile(r"[^\W_]")
    cut = [word.match(blob[i - 1 : i]) and word.match(blob[i : i + 1]) for i in (start, start + len(needle))]
    if any(cut) or "\\" in blob or not normalise(needle):
        return
    assert needle.lower() in blob.lower()
    assert Matcher([needle]).find(blob, value), (needle, blob)


# --- Cost -----------------------------------------------------------------------------------------


def unbounded_and_varying(tree, inside=False):
    """Repeats without a bound of a body that itself matches at varying lengths: more than linear."""
    for operator, argument in tree:
        if operator in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            _, high, body = argument
            if high == sre.MAXREPEAT and body.getwidth()[0] != body.getwidth()[1]:
                yield operator
            yield from unbounded_and_varying(body)
        elif operator is sre.SUBPATTERN:
            yield from unbounded_and_varying(argument[-1])
        elif operator is sre.BRANCH:
            for branch in argument[1]:
                yield from unbounded_and_varying(branch)


def test_no_pattern_repeats_a_repetition():
    names = ("characters", "decoding", "letters", "matcher", "phrases", "pieces", "reading", "text")
    modules = [importlib.import_module(f"rehearsal.runner.{name}") for name in names]
    patterns = {item for module in modules for item in vars(module).values() if isinstance(item, re.Pattern)}
    assert len(patterns) > 10
    assert [p.pattern for p in patterns if list(unbounded_and_varying(sre.parse(p.pattern, p.flags)))] == []
    assert list(unbounded_and_varying(sre.parse("(?:a*b)+")))


def steps(text: str) -> int:
    """How many calls looking through the text takes, of Python functions and built-in ones alike."""
    looked = Matcher(["ship", "s", SHORT, LONG, "I have already sent", "aaaaaaaaaaaab"])
    count = 0

    def counted(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        looked.find(text, None)
    finally:
        sys.setprofile(before)
    return count


# fmt: off
UNITS = st.sampled_from([
    "shipment ", "s.", "Delphi have already sent ", "&amp;", "&", "<a ", "<!--", "](", "][", '\\"', "\\\\", "!", "$a",
    "r e f ", "1.", "a-\n", "- ", "\u200b", "\u202e", "e\u0301", "%41", "=41", "Νν", "aA", "no refun", " ", "a",
])
# fmt: on


@settings(max_examples=40)
@given(st.lists(UNITS, min_size=1, max_size=4).map("".join))
def test_twice_the_text_takes_at_most_twice_the_steps(unit):
    text = unit * (2_000 // len(unit) + 1)
    steps(text)  # what is worked out once for a character or a phrase
    assert steps(text + text) <= 2 * steps(text) + 200
