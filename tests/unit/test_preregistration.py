from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from rehearsal.boxes.exposure import CANARY_NAME
from rehearsal.preregistration import LAB_ENDPOINT, laptop_secrets, prepare
from rehearsal.runner.corpus import load as load_corpus
from rehearsal.runner.errors import EmptyCorpus, InvalidInput, UsageError
from rehearsal.runner.plan import Plan, verify
from rehearsal.settings import Model, Settings
from tests.unit.runs import fixture_value, lay_out


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    lay_out(tmp_path / "project", api="plain")
    (tmp_path / "project" / "fixtures" / "README.md").write_text("not sent")
    return Settings(
        fixtures=tmp_path / "project" / "fixtures",
        prompts=tmp_path / "project" / "prompts",
        out=tmp_path / "runs",
        repeat=2,
    )


def test_the_plan_lies_in_the_evidence_and_what_is_sent_verifies_against_it(settings: Settings, tmp_path: Path) -> None:
    prepared = prepare(settings, None, {})
    names = [name for name, _ in prepared.files]
    assert names == [
        "plan.json", "fixtures/T-1.json", "fixtures/T-2.json", "prompts/reply-v3.txt", "prompts/reply-v3.toml",
    ]  # fmt: skip
    for name, content in prepared.files:
        (tmp_path / "box" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "box" / name).write_bytes(content)
    assert prepared.evidence == (tmp_path / "runs" / prepared.plan.run_id).resolve()
    written = (prepared.evidence / "plan.json").read_text()
    assert Plan.from_json(written) == prepared.plan
    assert verify(prepared.plan, tmp_path / "box").version == "reply-v3"
    assert prepared.plan.corpus_hash == load_corpus(settings.fixtures, "reply-v3").corpus_hash
    assert (prepared.plan.expected, prepared.plan.endpoint) == (4, LAB_ENDPOINT)


def test_two_runs_never_share_a_name(settings: Settings) -> None:
    assert prepare(settings, None, {}).plan.run_id != prepare(settings, None, {}).plan.run_id


def test_no_credential_of_the_url_is_written_down(settings: Settings) -> None:
    model = Model("https://user:s3cretpw@m.example/v1?key=abc", "sesame-open")
    prepared = prepare(settings, model, laptop_secrets(model))
    assert prepared.plan.endpoint == "https://m.example/v1"
    for _, content in prepared.files:
        assert not any(word in content for word in (b"s3cretpw", b"abc", b"sesame"))


def test_an_empty_corpus_stops_here_and_leaves_nothing(settings: Settings) -> None:
    for path in settings.fixtures.glob("*.json"):
        path.unlink()
    with pytest.raises(EmptyCorpus):
        prepare(settings, None, {})
    assert not settings.out.exists()


@pytest.mark.parametrize(
    ("secrets", "text"),
    [
        ({}, "my key is npm_" + "aB3" * 12),
        ({"MODEL_KEY": "sesame-open"}, "the word is sesame-open"),
        ({"MODEL_URL": "http://m/?key=1"}, "look at http://m/?key=1"),
    ],
)
def test_a_secret_in_what_would_be_sent_stops_here(settings: Settings, secrets: dict[str, str], text: str) -> None:
    (settings.fixtures / "T-1.json").write_text(json.dumps(fixture_value("T-1", ticket_body=text)))
    with pytest.raises(InvalidInput, match="holds a secret"):
        prepare(settings, None, secrets)
    assert not settings.out.exists()


def test_the_laptops_secrets_are_a_fresh_canary_its_own_and_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    monkeypatch.setenv(CANARY_NAME, "planted by somebody else")
    monkeypatch.setenv("GH_TOKEN", "abcdefgh12")
    found = laptop_secrets(Model("http://u:p@m/", "sesame-open"))
    assert found == {
        CANARY_NAME: os.environ[CANARY_NAME],
        "GH_TOKEN": "abcdefgh12",
        "MODEL_KEY": "sesame-open",
        "MODEL_URL": "http://u:p@m/",
    }
    assert laptop_secrets(None)[CANARY_NAME] != found[CANARY_NAME]


def test_beside_a_key_a_plain_url_is_no_secret_and_the_plan_may_name_it(settings: Settings) -> None:
    model = Model("https://m.example/v1", "sesame-open")
    assert "MODEL_URL" not in laptop_secrets(model)
    assert prepare(settings, model, laptop_secrets(model)).plan.endpoint == model.url


def test_a_key_that_is_an_ordinary_word_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local endpoints take any key, and a ticket that says "none" is no leak."""
    assert "MODEL_KEY" not in laptop_secrets(Model("http://m/", "none"))


def test_a_seam_is_sent_and_hashed_into_the_policy(settings: Settings, tmp_path: Path) -> None:
    plain = prepare(settings, None, {}).plan.policy_hash
    source = b"def draft(prompt):\n    return {}\n"
    (tmp_path / "our_seam.py").write_bytes(source)
    prepared = prepare(Settings(**{**settings.__dict__, "seam": f"{tmp_path}/our_seam.py:draft"}), None, {})
    seam = prepared.plan.seam
    assert seam is not None
    assert (seam.file, seam.function, seam.sha256) == ("our_seam.py", "draft", hashlib.sha256(source).hexdigest())
    assert prepared.files[-1] == ("our_seam.py", source)
    assert prepared.plan.policy_hash != plain


@pytest.mark.parametrize("seam", ["our_seam.py", "our_seam:draft", "our_seam.py:no-name", ":draft"])
def test_what_is_no_seam_is_refused(settings: Settings, seam: str) -> None:
    with pytest.raises(UsageError, match=r"is not path\.py:function"):
        prepare(Settings(**{**settings.__dict__, "seam": seam}), None, {})


def test_a_seam_that_is_not_there_is_named(settings: Settings) -> None:
    with pytest.raises(InvalidInput, match=r"nowhere\.py: can't be read"):
        prepare(Settings(**{**settings.__dict__, "seam": "nowhere.py:draft"}), None, {})


def test_evidence_that_can_not_be_written_stops_here(settings: Settings) -> None:
    settings.out.write_text("a file")
    with pytest.raises(UsageError, match="can't be written to") as caught:
        prepare(settings, None, {})
    assert "--out" in caught.value.hint
