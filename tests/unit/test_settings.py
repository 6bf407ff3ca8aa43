from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rehearsal.runner.errors import UsageError
from rehearsal.settings import Model, Settings


def test_a_flag_outweighs_what_is_configured_and_a_missing_flag_does_not() -> None:
    settings = Settings.read({"repeat": 2, "ttl": "60", "out": "~/runs"}, {"repeat": "3", "ttl": None, "keep": True})
    assert (settings.repeat, settings.ttl, settings.keep) == (3, 60, True)
    assert settings.out == Path("~/runs").expanduser()
    assert settings.box == "loopback"


def test_the_defaults_are_those_of_the_design() -> None:
    assert Settings.read({}, {}) == Settings()
    assert (Settings().repeat, Settings().concurrency, Settings().ttl) == (1, 8, 3600)


@pytest.mark.parametrize(
    ("configured", "flags", "words"),
    [
        ({"repeats": 2}, {}, "rehearsal.repeats is not a setting"),
        ({"repeat": "many"}, {}, "rehearsal.repeat must be a whole number from 1 to 1000"),
        ({}, {"repeat": "0"}, "--repeat must be a whole number"),
        ({}, {"repeat": True}, "--repeat must be"),
        ({}, {"repeat": "٣"}, "--repeat must be"),
        ({}, {"concurrency": 257}, "--concurrency must be"),
        ({"ttl": -1}, {}, "rehearsal.ttl must be"),
        ({"ttl": 1.5}, {}, "rehearsal.ttl must be"),
        ({"keep": "yes"}, {}, "rehearsal.keep must be true or false"),
        ({"template": 3}, {}, "rehearsal.template must be a text"),
        ({}, {"box": " "}, "--box must be a text"),
        ({}, {"host": "me@there"}, "--host is for the box `host`"),
    ],
)
def test_what_can_not_be_used_is_named_with_its_place(configured: dict, flags: dict, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        Settings.read(configured, flags)
    assert caught.value.message.startswith(words)


def test_the_version_is_the_configured_one_or_the_only_one(tmp_path: Path) -> None:
    settings = Settings(prompts=tmp_path)
    with pytest.raises(UsageError, match="holds 0 templates"):
        settings.version()
    (tmp_path / "v1.txt").touch()
    assert settings.version() == "v1"
    (tmp_path / "v2.txt").touch()
    with pytest.raises(UsageError, match="holds 2 templates") as caught:
        settings.version()
    assert "v1, v2" in caught.value.hint
    assert Settings(prompts=tmp_path, template="v2").version() == "v2"


def model(url: str, key: str = "") -> Model:
    found = Model.from_environment({"MODEL_URL": url, "MODEL_KEY": key})
    assert found is not None
    return found


def test_no_url_is_the_lab_model() -> None:
    assert Model.from_environment({}) is None
    assert Model.from_environment({"MODEL_URL": " ", "MODEL_KEY": "k"}) is None


@pytest.mark.parametrize(
    "url", ["model", "ftp://m/", "http://", "http://m:99999/", "http://m:x/", "http://m/a b", "http://mü/"]
)
def test_what_is_no_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="MODEL_URL is not a URL"):
        model(url)
    with pytest.raises(UsageError) as caught:
        model(f"{url} sesame")
    assert "sesame" not in caught.value.message


def test_a_key_that_no_header_can_carry_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="MODEL_KEY") as caught:
        model("http://m/", "sesämé")
    assert "ses" not in caught.value.message


@pytest.mark.parametrize(
    ("url", "endpoint", "secret"),
    [
        ("https://user:pw@m.example:8443/v1?key=K#f", "https://m.example:8443/v1", True),
        ("https://m.example/v1?key=K", "https://m.example/v1", True),
        ("https://@m.example/v1", "https://m.example/v1", True),
        ("http://[::1]:9/v1", "http://[::1]:9/v1", False),
        ("https://m.example/v1", "https://m.example/v1", False),
    ],
)
def test_only_the_url_without_credentials_is_ever_written_down(url: str, endpoint: str, secret: bool) -> None:
    found = model(url, "")
    assert (found.endpoint, found.url_is_secret) == (endpoint, secret)
    assert "m.example" not in repr(found)
    assert "sesame" not in repr(model(url, "sesame"))
    assert model(url, "sesame").needs_relay("not sealed")


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://localhost:1/", True),
        ("http://LOCALHOST/", True),
        ("http://a.localhost/", True),
        ("http://127.0.0.1/", True),
        ("http://127.9.9.9/", True),
        ("http://[::1]/", True),
        ("http://0.0.0.0/", True),
        ("http://localhost.example/", False),
        ("http://10.0.0.1/", False),
    ],
)
def test_a_relay_is_needed_for_what_only_this_machine_can_reach_and_for_every_secret(url: str, local: bool) -> None:
    assert model(url).is_local is local
    assert model(url).needs_relay("not sealed") is local
    assert model(url).needs_relay("sealed")
    assert model(url, "key").needs_relay("not sealed")


def test_nothing_is_read_from_anywhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_URL", "http://elsewhere/")
    values: dict[str, Any] = {}
    assert Model.from_environment(values) is None


@pytest.mark.parametrize("name", ["key", "api_key", "access_token", "sig", "code"])
def test_what_a_query_calls_a_credential_is_a_secret(name: str) -> None:
    assert model(f"https://m.example/v1?{name}=sesame-open", "").secrets()[f"MODEL_URL's {name}"] == "sesame-open"


@pytest.mark.parametrize("name", ["api-version", "deployment", "language", "out"])
def test_other_values_of_a_query_are_words_that_a_ticket_may_hold(name: str) -> None:
    assert list(model(f"https://m.example/v1?{name}=summary", "").secrets()) == ["MODEL_URL"]
