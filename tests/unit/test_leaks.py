from __future__ import annotations

import json
from pathlib import Path

import pytest

from rehearsal.authoring import leaks
from rehearsal.runner.errors import InvalidInput

# In halves, so that no scanner takes this file for a leak.
SECRETS = {
    "a private key": "-----BEGIN OPENSSH " + "PRIVATE KEY-----",
    "an AWS access key": "AKIA" + "Z7QX" * 4,
    "a GitHub token": "ghp_" + "aB3" * 12,
    "a GitLab token": "glpat-" + "aB3-" * 5,
    "a Slack token": "xoxb-" + "1234567890-ab",
    "a Stripe key": "sk_live_" + "aB3d" * 5,
    "an OpenAI or Anthropic key": "sk-ant-" + "aB3d-" * 5,
    "a Google key": "AIza" + "aB3_-" * 7,
    "an npm token": "npm_" + "aB3" * 12,
    "a Hugging Face token": "hf_" + "aB3" * 11,
    "a JSON web token": "eyJ" + "hbGciOiJIUzI1.eyJ" + "zdWIiOiIxMjM0." + "c2lnbmF0dXJl",
    "a password in a URL": "redis://:" + "hunter22@" + "cache.internal",
}


def message(content: str, secrets: dict[str, str] | None = None) -> str:
    with pytest.raises(InvalidInput) as caught:
        leaks.refuse([("fixtures/a.json", content.encode())], secrets or {})
    return caught.value.message


def test_every_shape_has_an_example() -> None:
    assert set(SECRETS) == set(leaks._SHAPES)


@pytest.mark.parametrize("what", SECRETS)
def test_a_live_credential_is_refused_by_line_and_never_repeated(what: str) -> None:
    value = SECRETS[what]
    said = message(f"one\ntwo, my key is {value}, help\n")
    assert said.endswith(f"1 issue\n  fixtures/a.json: line 2 holds what looks like {what}")
    assert value not in said


def test_json_escapes_hide_nothing() -> None:
    hidden = SECRETS["a Stripe key"].replace("s", "\\u0073", 1)
    assert "a Stripe key" in message(f'{{"ticket_body": "{hidden}"}}')
    said = message(json.dumps({"ticket_body": 'my pass"word\\ is ü'}), {"DB_PASSWORD": 'pass"word\\ is ü'})
    assert said.endswith("line 1 holds the value of this machine's DB_PASSWORD")


def test_every_place_of_every_file_comes_at_once() -> None:
    files = [("a", SECRETS["an npm token"].encode()), ("b", b"\xff ok"), ("c", b"1\n2\nsesame-open")]
    with pytest.raises(InvalidInput) as caught:
        leaks.refuse(files, {"MODEL_KEY": "sesame-open"})
    assert [(issue.file, issue.problem) for issue in caught.value.issues] == [
        ("a", "line 1 holds what looks like an npm token"),
        ("c", "line 3 holds the value of this machine's MODEL_KEY"),
    ]


@pytest.mark.parametrize("name", ["MODEL_URL", "REHEARSAL_CANARY", "ANYTHING"])
def test_what_is_handed_over_as_a_secret_is_one_whatever_its_name(name: str) -> None:
    said = message("see https://u:pw@m/ there", {name: "https://u:pw@m/"})
    assert f"this machine's {name}" in said
    assert "u:pw" not in said


def test_a_secret_of_several_lines_is_found() -> None:
    assert "line 2" in message("x\nalpha\nbeta\n", {"SIGNING_KEY": "alpha\nbeta"})


def test_the_environments_own_secrets_go_by_name_and_length() -> None:
    environment = {
        "AWS_SECRET_ACCESS_KEY": "abcdefgh12",
        "GH_TOKEN": "abcdefgh12",
        "db_password": "abcdefgh12",
        "GOOGLE_APPLICATION_CREDENTIALS": "/home/x/c.json",
        "SHORT_KEY": "abc",
        "KEY_COUNT": "1234567890",
        "PATH": "/usr/bin:/bin",
    }
    assert sorted(leaks.environment_secrets(environment)) == sorted(list(environment)[:4])


def test_the_shipped_files_raise_no_alarm(repo: Path) -> None:
    files = [(path.name, path.read_bytes()) for folder in ("fixtures", "prompts") for path in (repo / folder).iterdir()]
    assert len(files) > 8
    leaks.refuse(files, {})


@pytest.mark.parametrize(
    "text",
    ["https://shop.example/order?id=7", "mail me: ann@example.com", "see http://x/a:b@c", "sk-short", "AKIA is a word"],
)
def test_ordinary_mail_raises_no_alarm(text: str) -> None:
    leaks.refuse([("a", text.encode())], {})
