from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from rehearsal.runner.corpus import load
from rehearsal.runner.errors import EmptyCorpus, InvalidInput
from tests.unit.runs import fixture_value


def write(folder: Path, name: str, value: Any) -> bytes:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    (folder / name).write_bytes(raw)
    return raw


def problems(folder: Path) -> list[tuple[str, str, str]]:
    with pytest.raises(InvalidInput) as caught:
        load(folder, "reply-v3")
    for issue in caught.value.issues:
        assert str(issue) in caught.value.message
    return [(Path(issue.file).name, issue.pointer, issue.problem) for issue in caught.value.issues]


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in fixture_value().items() if name != key}


@pytest.mark.parametrize(
    ("value", "pointer", "words"),
    [
        *[(without(key), f"/{key}", "is required") for key in fixture_value()],
        (fixture_value(forbiden_substrings=["x"]), "/forbiden_substrings", "is not a key"),
        ({**fixture_value(), "a/b~c": 1}, "/a~1b~0c", "is not a key"),
        (fixture_value(id=7), "/id", "must be a string"),
        (fixture_value(id=" \u200b"), "/id", "must be a string that a reader can see"),
        (fixture_value(id="../T-1"), "/id", "must be letters"),
        (fixture_value(id="T-1\n"), "/id", "must be letters"),
        (fixture_value(id="corpus"), "/id", "must not be one of"),
        (fixture_value(id="unsealed"), "/id", "must not be one of"),
        (fixture_value(template_version=None), "/template_version", "must be a string"),
        (fixture_value(ticket_body="\u3164\u2800 "), "/ticket_body", "must be a string that a reader can see"),
        (fixture_value(ticket_body="a\ud800"), "/ticket_body", "half of a surrogate pair"),
        (fixture_value(notes="a\ud800"), "/notes", "half of a surrogate pair"),
        (fixture_value(must_include_keys=["a\ud800"]), "/must_include_keys", "half of a surrogate pair"),
        (fixture_value(forbidden_substrings=["a\ud800"]), "/forbidden_substrings", "half of a surrogate pair"),
        (fixture_value(must_include_keys="summary"), "/must_include_keys", "must be a list"),
        (fixture_value(must_include_keys=["a", 1]), "/must_include_keys/1", "must be a string"),
        (fixture_value(forbidden_substrings=[]), "/forbidden_substrings", "forbids nothing"),
        (fixture_value(forbidden_substrings={"a": "b"}), "/forbidden_substrings", "must be a list"),
        (fixture_value(forbidden_substrings=["ok", ""]), "/forbidden_substrings/1", "must be a string that"),
        (fixture_value(forbidden_substrings=["…!"]), "/forbidden_substrings/0", "normalises to nothing"),
        (fixture_value(forbidden_claims=["refund"]), "/forbidden_claims", "is not supported yet"),
        (fixture_value(forbidden_claims=[]), "/forbidden_claims", "is not supported yet"),
        (fixture_value(owner=1), "/owner", "must be a string"),
        (fixture_value(frozen_at="30.11.2026"), "/frozen_at", "must be a date"),
        (fixture_value(frozen_at="2026-02-30"), "/frozen_at", "must be a date"),
        (fixture_value(confidence_range=[1, 0]), "/confidence_range", "the lower first"),
        (fixture_value(confidence_range=[0, True]), "/confidence_range", "must be two numbers"),
        (fixture_value(confidence_range=[0]), "/confidence_range", "must be two numbers"),
        ([fixture_value()], "", "must be a JSON object"),
        (b"null", "", "must be a JSON object"),
        (b"", "", "is not strict JSON"),
        (b"\xef\xbb\xbf" + json.dumps(fixture_value()).encode(), "", "byte order mark (BOM)"),
        (json.dumps(fixture_value()).encode("utf-16"), "", "is not UTF-8 at byte 0"),
        (b'{"id": "T-1", "id": "T-2"}', "", 'has the key "id" twice'),
        (b'{"confidence_range": [0, NaN]}', "", "holds NaN"),
        (b'{"confidence_range": [0, 1e999]}', "", "too large"),
        (b"[" * 9000, "", "nested too deeply"),
    ],
)
def test_a_bad_fixture_is_refused_with_its_place(tmp_path: Path, value: Any, pointer: str, words: str) -> None:
    write(tmp_path, "bad.json", value)
    ((file, where, problem),) = problems(tmp_path)
    assert (file, where) == ("bad.json", pointer)
    assert words in problem


def test_all_issues_of_all_files_come_at_once(tmp_path: Path) -> None:
    write(tmp_path, "a.json", {**without("id"), "must_include_keys": [1], "extra": 0})
    write(tmp_path, "b.json", b"{")
    write(tmp_path, "good.json", fixture_value())
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "gone.json").symlink_to(tmp_path / "nothing")
    found = [(file, pointer) for file, pointer, _ in problems(tmp_path)]
    assert found == [
        ("a.json", "/extra"),
        ("a.json", "/id"),
        ("a.json", "/must_include_keys/0"),
        ("b.json", ""),
        ("folder.json", ""),
        ("gone.json", ""),
    ]


def test_one_id_twice_is_refused_even_across_templates(tmp_path: Path) -> None:
    write(tmp_path, "a.json", fixture_value())
    write(tmp_path, "b.json", fixture_value(template_version="reply-v2"))
    assert problems(tmp_path) == [("b.json", "/id", "'T-1' is also the id in a.json")]


def test_a_bad_fixture_of_another_template_is_an_error_too(tmp_path: Path) -> None:
    write(tmp_path, "a.json", fixture_value())
    write(tmp_path, "b.json", fixture_value("T-2", template_version="reply-v2", forbidden_substrings=[]))
    assert len(problems(tmp_path)) == 1


@pytest.mark.parametrize("others", [0, 1])
def test_an_empty_corpus_is_red(tmp_path: Path, others: int) -> None:
    if others:
        write(tmp_path, "a.json", fixture_value(template_version="reply-v2"))
    with pytest.raises(EmptyCorpus, match="an empty corpus is red") as caught:
        load(tmp_path, "reply-v3")
    assert caught.value.exit_code == 1
    assert ("reply-v2" in caught.value.hint) == bool(others)


def test_a_missing_folder_is_no_empty_corpus(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not a folder"):
        load(tmp_path / "fixtures", "reply-v3")


def test_only_the_templates_own_fixtures_run_and_the_others_are_counted(tmp_path: Path) -> None:
    for number, version in enumerate(("reply-v3", "reply-v2", "reply-v3", "reply-v33")):
        write(tmp_path, f"{9 - number}.json", fixture_value(f"T-{number}", template_version=version))
    corpus = load(tmp_path, "reply-v3")
    assert [fixture.id for fixture in corpus.fixtures] == ["T-0", "T-2"]
    assert corpus.set_aside == 2


def test_the_corpus_hash_is_what_the_design_says(tmp_path: Path) -> None:
    second = write(tmp_path, "1.json", fixture_value("T-2"))
    first = write(tmp_path, "2.json", fixture_value("T-1"))
    lines = [(b"T-1", first), (b"T-2", second)]
    entry = b"".join(name + b"\0" + hashlib.sha256(raw).hexdigest().encode() + b"\n" for name, raw in lines)
    before = load(tmp_path, "reply-v3").corpus_hash
    assert before == hashlib.sha256(entry).hexdigest()
    write(tmp_path, "1.json", second + b"\n")
    assert load(tmp_path, "reply-v3").corpus_hash != before


def test_a_fixture_is_read_as_it_stands(tmp_path: Path) -> None:
    write(tmp_path, "a.json", fixture_value(owner="ann", frozen_at="2026-11-30", confidence_range=[0.2, 1]))
    (fixture,) = load(tmp_path, "reply-v3").fixtures
    assert (fixture.owner, fixture.frozen_at, fixture.confidence_range) == ("ann", "2026-11-30", (0.2, 1))
    assert fixture.ticket_body == "charged twice!! (T-1)"


def test_the_shipped_corpus_is_good(repo: Path) -> None:
    corpus = load(repo / "fixtures", "reply-v3")
    assert len(corpus.fixtures) >= 8
    assert "T-1842-duplicate-capture" in {fixture.id for fixture in corpus.fixtures}


@pytest.mark.parametrize("name", ["T-9.JSON", "more/T-9.json"])
def test_a_file_that_looks_like_a_fixture_and_would_not_run_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    with pytest.raises(InvalidInput, match="would not run"):
        load(tmp_path, "reply-v3")
