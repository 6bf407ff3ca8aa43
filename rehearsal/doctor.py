"""What is here, what is missing, and what to do about it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from rehearsal import lab
from rehearsal.boxes.ledger import open_ledger
from rehearsal.boxes.loopback_seal import obstacle
from rehearsal.boxes.payload import payload
from rehearsal.console import Console
from rehearsal.runner import corpus, template
from rehearsal.runner.errors import RehearsalError, UsageError
from rehearsal.settings import Model, Settings

OK, MISSING, NOTE = "ok", "missing", "note"
COLUMNS = ("what", "state", "detail", "what to do")


@dataclass(frozen=True)
class Check:
    """One thing looked at: its `state` is ok, note (a rehearsal works without it) or missing."""

    what: str
    state: str
    detail: str
    remedy: str = ""


def examine(settings: Settings, console: Console) -> int:
    """Print every check; 0 where `invoke rehearse` can work, UsageError's code where something it needs is missing."""
    checks = [*_machine(), *_model(), *_project(settings), *_boxes()]
    console.table(COLUMNS, [(c.what, c.state, c.detail, c.remedy) for c in checks], style_by=1)
    missing = [check.what for check in checks if check.state == MISSING]
    code = UsageError.exit_code if missing else 0
    console.conclusion(
        "red" if missing else "green",
        f"missing for `invoke rehearse`: {', '.join(missing)}" if missing else "`invoke rehearse` can work here",
    )
    console.result({"exit_code": code, "checks": [check.__dict__ for check in checks]})
    return code


def _machine() -> Iterator[Check]:
    yield Check("python", OK, sys.version.split()[0])
    why = obstacle()
    if not why:
        yield Check("bubblewrap", OK, "the loopback box is sealed: no network but the tunnel to the model")
    else:
        remedy = "install the package bubblewrap" if sys.platform == "linux" else ""
        yield Check("bubblewrap", NOTE, f"{why}, so the loopback box is not sealed", remedy)
    for program, use in (
        ("ssh", "needed for --box host"),
        ("ssh-keygen", "needed for --box host"),
        ("git", ""),
    ):
        path = shutil.which(program)
        yield Check(program, OK if path else NOTE, path or f"not on PATH; {use}", "" if path else f"install {program}")
    try:
        yield Check("payload", OK, f"sha256 {payload()[1][:16]}")
    except RehearsalError as error:
        yield Check("payload", MISSING, error.message, error.hint)


def _model() -> Iterator[Check]:
    try:
        model = Model.from_environment(os.environ)
    except RehearsalError as error:
        yield Check("model", MISSING, error.message, "correct MODEL_URL")
        return
    why = lab.unavailable()
    if model is not None:
        way = (
            "through the relay"
            if model.needs_relay("not sealed")
            else "directly, or through the relay from a sealed box"
        )
        yield Check("model", OK, f"{model.endpoint}, {way}")
    elif why is None:
        yield Check("model", OK, "MODEL_URL is not set: the lab model answers")
    else:
        yield Check("model", MISSING, f"MODEL_URL is not set, and {why}", "export MODEL_URL=https://…")


def _project(settings: Settings) -> Iterator[Check]:
    try:
        version = settings.version()
        pinned = template.load(settings.prompts, version)
        yield Check("template", OK, f"{version}, sha256 {pinned.template_hash[:16]}, api {pinned.settings.api}")
        found = corpus.load(settings.fixtures, version)
        yield Check("corpus", OK, f"{len(found.fixtures)} fixtures, {found.set_aside} of other templates set aside")
    except RehearsalError as error:
        yield Check("template and corpus", MISSING, error.message, error.hint)


def _boxes() -> Iterator[Check]:
    try:
        rows = open_ledger().rows(alive_only=True)
    except RehearsalError as error:
        yield Check("ledger", MISSING, error.message, error.hint)
        return
    up = ", ".join(row.box_id for row in rows)
    yield Check("boxes", NOTE if rows else OK, f"up: {up}" if rows else "none is up", "invoke cleanup" if rows else "")
