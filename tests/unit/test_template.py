from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from rehearsal.runner import template
from rehearsal.runner.errors import InvalidInput
from rehearsal.runner.template import Settings

TEXT = b"Draft a reply.\n{{ticket_body}}\n"
TOML = b'api = "openai-chat"\nmodel = "m"\ntemperature = 0\n'


def write(folder: Path, text: bytes | None = TEXT, toml: bytes | None = None) -> Path:
    for name, raw in (("v1.txt", text), ("v1.toml", toml)):
        if raw is not None:
            (folder / name).write_bytes(raw)
    return folder


def problems(folder: Path, version: str = "v1") -> list[tuple[str, str, str]]:
    with pytest.raises(InvalidInput) as caught:
        template.load(folder, version)
    return [(Path(issue.file).name, issue.pointer, issue.problem) for issue in caught.value.issues]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"\xef\xbb\xbf" + TEXT, "byte order mark (BOM)"),
        (TEXT.replace(b"\n", b"\r\n"), "CRLF"),
        (b"Draft a reply.", "holds no {{ticket_body}}"),
        (TEXT + b"{{ name }}", "holds {{ name }}, and only"),
        (b"{{ ticket_body }}" + TEXT, "holds {{ ticket_body }}, and only"),
        (TEXT + b"{{#if\nx}}", "and only"),
        (TEXT + b"{{" + b"x" * 200 + b"}}", "and only"),
        (TEXT + b"\xff", "is not UTF-8"),
        (None, "does not exist"),
    ],
)
def test_a_bad_text_is_refused_by_name(tmp_path: Path, text: bytes | None, words: str) -> None:
    ((file, _, problem),) = problems(write(tmp_path, text))
    assert file == "v1.txt"
    assert words in problem


@pytest.mark.parametrize(
    ("toml", "pointer", "words"),
    [
        (b"temprature = 0", "/temprature", "is not a setting"),
        (b'api = "soap"', "/api", "must be one of"),
        (b"temperature = true", "/temperature", "must be a number"),
        (b"temperature = nan", "/temperature", "from 0 to 2"),
        (b"timeout_s = inf", "/timeout_s", "3600"),
        (b"timeout_s = 0", "/timeout_s", "above 0"),
        (b"max_tokens = 0", "/max_tokens", "above 0"),
        (b"top_p = 1.1", "/top_p", "at most 1"),
        (b"seed = 1.5", "/seed", "whole number"),
        (b"unwrap_fence = 1", "/unwrap_fence", "true or false"),
        (b"[response_format]\nsince = 2026-11-30", "/response_format", "JSON"),
        (b"[response_format]\nmost = inf", "/response_format", "JSON"),
        (b"api", "", "is not TOML"),
        (b"seed = 1\r\n", "", "CRLF"),
    ],
)
def test_bad_settings_are_refused_with_their_place(tmp_path: Path, toml: bytes, pointer: str, words: str) -> None:
    ((file, where, problem),) = problems(write(tmp_path, toml=toml))
    assert (file, where) == ("v1.toml", pointer)
    assert words in problem


def test_all_issues_of_both_files_come_at_once(tmp_path: Path) -> None:
    write(tmp_path, b"{{x}}", b'api = "soap"\nseed = "one"\nother = 1\n')
    found = {(file, pointer) for file, pointer, _ in problems(tmp_path)}
    assert found == {("v1.txt", ""), ("v1.toml", "/seed"), ("v1.toml", "/other")}


@pytest.mark.parametrize("version", ["../v1", "", "v1\n", "a/b", ".v1"])
def test_a_version_is_a_plain_name(tmp_path: Path, version: str) -> None:
    assert "must be letters" in problems(write(tmp_path), version)[0][2]


def test_any_byte_of_either_file_changes_the_hash(tmp_path: Path) -> None:
    seen = {template.load(write(tmp_path), "v1").template_hash}
    variants = [(TEXT, b""), (TEXT, TOML), (TEXT, TOML + b"\n"), (TEXT, b"# " + TOML), (TEXT + b" ", TOML)]
    for text, toml in variants:
        seen.add(template.load(write(tmp_path, text, toml), "v1").template_hash)
    assert len(seen) == 1 + len(variants)


def test_the_hash_is_over_name_and_digest_of_each_file(tmp_path: Path) -> None:
    pairs = ((b"v1.txt", TEXT), (b"v1.toml", TOML))
    lines = b"".join(name + b"\0" + hashlib.sha256(raw).hexdigest().encode() + b"\n" for name, raw in pairs)
    assert template.load(write(tmp_path, toml=TOML), "v1").template_hash == hashlib.sha256(lines).hexdigest()


def test_substitution_is_literal_and_single_pass(tmp_path: Path) -> None:
    loaded = template.load(write(tmp_path, b"{{ticket_body}}|{{ticket_body}}"), "v1")
    ticket = r"{{ticket_body}} {{x}} \1 \g<0> {0} %s ${HOME} {% raw %}"
    assert loaded.render(ticket) == f"{ticket}|{ticket}"


def test_the_prompt_hash_is_the_articles(tmp_path: Path) -> None:
    loaded = template.load(write(tmp_path), "v1")
    prompt = "Draft a reply.\nzwölf {{ticket_body}}\n"
    assert loaded.prompt_hash("zwölf {{ticket_body}}") == hashlib.sha256(prompt.encode()).hexdigest()


def test_the_box_gets_the_same_template_from_the_plans_settings(tmp_path: Path) -> None:
    loaded = template.load(write(tmp_path, toml=TOML + b"[response_format]\ntype = 'json_object'\n"), "v1")
    assert template.from_plan(tmp_path, "v1", loaded.settings.to_mapping()) == loaded
    assert loaded.settings == Settings(
        api="openai-chat", model="m", temperature=0, response_format={"type": "json_object"}
    )


def test_versions_are_the_text_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "a.toml", "README.md", ".hidden.txt"):
        (tmp_path / name).touch()
    assert template.versions(tmp_path) == ["a", "b"]
    assert "versions in" in _hint(tmp_path)


def _hint(folder: Path) -> str:
    with pytest.raises(InvalidInput) as caught:
        template.load(folder, "c")
    return caught.value.hint


def test_the_shipped_templates_are_good(repo: Path) -> None:
    assert "reply-v3" in template.versions(repo / "prompts")
    for version in template.versions(repo / "prompts"):
        assert template.load(repo / "prompts", version).settings.api == "openai-chat"
