"""A small project of a team's own, with a model beside it, and `invoke` run in it as a person would.

project = Project(tmp_path / "project")
with project.model(answer(200, DRAFT)) as model:  # any behaviour of tests/contract/misbehaving.py
    done = project.invoke("rehearse", "--json")
    assert done.json["verdict"] == "green"
    assert model.asked[0].json()["prompt"]
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.contract.misbehaving import DRAFT, Asked, Behaviour, Server, response, serve

REPO = Path(__file__).resolve().parents[2]
INVOKE = Path(sys.executable).with_name("invoke")
LONGEST_S = 120  # a whole rehearsal takes 2 s here; what takes so long hangs
TICKETS = {
    "T-1-charged-twice": "We were charged TWICE and i want it back today!!",
    "T-2-lawyer": "My lawyer says you owe me. Answer by Friday or we go to court.",
    "T-3-where-is-it": "where is my parcel, you said monday, {{ticket_body}} it is thursday",
}
PROMPT = "Draft a reply to this ticket. Promise nothing.\n\n{{ticket_body}}\n"


def slow(seconds: float, body: bytes = DRAFT) -> Behaviour:
    """A well-formed answer that takes its time."""

    async def behave(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(seconds)
        writer.write(response(200, body))

    return behave


def reply(**changed: Any) -> bytes:
    """The good draft with fields replaced; a field that is None is left out."""
    fields = {**json.loads(DRAFT), **changed}
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


@dataclass(frozen=True)
class Done:
    """How one `invoke` ended."""

    code: int
    output: str
    errors: str

    @property
    def json(self) -> Any:
        """The one JSON object on standard output, which holds nothing else."""
        return json.loads(self.output)

    @property
    def evidence(self) -> Path:
        """The folder of the run's evidence."""
        return Path(self.json["evidence"])

    @property
    def receipt(self) -> Any:
        """The run's teardown.json."""
        return json.loads((self.evidence / "teardown.json").read_text())


class Project:
    """A folder with tasks.py, fixtures/ and prompts/ of three tickets and one template.

    folder   where it is made; the evidence lands below it
    cache    XDG_CACHE_HOME, to be shared between tests: building the payload takes a second
    """

    def __init__(self, folder: Path, *, cache: Path | None = None) -> None:
        self.folder = folder
        self.settings: dict[str, Any] = {}
        self.environment: dict[str, str] = {"PYTHONPATH": str(REPO)}
        if cache is not None:
            self.environment["XDG_CACHE_HOME"] = str(cache)
        for name in ("fixtures", "prompts"):
            (folder / name).mkdir(parents=True)
        (folder / "tasks.py").write_text('from rehearsal.tasks import namespace\n\n__all__ = ["namespace"]\n')
        (folder / "prompts" / "reply-v3.txt").write_text(PROMPT)
        for name, ticket in TICKETS.items():
            self.fixture(name, ticket_body=ticket)

    def fixture(self, name: str, **changed: Any) -> Path:
        """Write (or replace) one fixture; `changed` replaces fields of an ordinary one, None leaves one out."""
        fields = {
            "id": name,
            "template_version": "reply-v3",
            "ticket_body": "Where is my parcel?",
            "must_include_keys": ["summary", "suggested_reply", "confidence"],
            "forbidden_substrings": ["refund has been issued"],
            **changed,
        }
        path = self.folder / "fixtures" / f"{name}.json"
        path.write_text(json.dumps({key: value for key, value in fields.items() if value is not None}))
        return path

    def configure(self, **settings: Any) -> None:
        """Settings of the project's invoke.yaml; they add up."""
        self.settings.update(settings)
        (self.folder / "invoke.yaml").write_text(json.dumps({"rehearsal": self.settings}))  # JSON is YAML

    @contextmanager
    def model(self, behaviour: Behaviour) -> Iterator[Server]:
        """A model that behaves so, as MODEL_URL of every later `invoke` while the block lasts."""
        with serve(behaviour) as server, pytest.MonkeyPatch.context() as patch:
            patch.setitem(self.environment, "MODEL_URL", server.url)
            yield server

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start `invoke` with these arguments, in a process group of its own as a shell would."""
        return subprocess.Popen(
            [str(INVOKE), *arguments],
            cwd=self.folder,
            env={**os.environ, **self.environment, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def invoke(self, *arguments: str, env: Mapping[str, str] | None = None, timeout: float = LONGEST_S) -> Done:
        """Run `invoke` with these arguments to its end."""
        return finish(self.start(*arguments, env=env), timeout)

    def boxes(self, *arguments: str) -> Any:
        """What `invoke boxes --json` lists."""
        return self.invoke("boxes", "--json", *arguments).json


def finish(process: subprocess.Popen[str], timeout: float = LONGEST_S) -> Done:
    """Wait for an `invoke` that was started."""
    with process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            raise AssertionError(f"{process.args} hangs; it said:\n{output}\n{errors}") from None
    return Done(process.returncode, output, errors)


def eventually(what: Callable[[], object], seconds: float = 30) -> bool:
    """Whether it becomes true; the time only bounds the wait for a failure."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def plain(text: str) -> str:
    """A terminal's text without colours and with single blanks."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())
