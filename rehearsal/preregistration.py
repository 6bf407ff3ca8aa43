"""Before any host exists: load and validate everything, look for secrets, write down what will be run."""

from __future__ import annotations

import hashlib
import os
import secrets as random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rehearsal.authoring import leaks
from rehearsal.boxes.exposure import CANARY_NAME
from rehearsal.evidence.receipt import write_whole
from rehearsal.runner import corpus as corpora
from rehearsal.runner import plan as plans
from rehearsal.runner import template as templates
from rehearsal.runner.errors import InvalidInput, Issue, RehearsalError, UsageError
from rehearsal.runner.plan import Plan, Seam
from rehearsal.settings import Model, Settings

SHORTEST_KEY = 7  # `none` and `ollama` stand in for a key where none is needed, and in ordinary tickets
LAB_ENDPOINT = "lab:smollm2-135m-instruct"


@dataclass(frozen=True)
class Prepared:
    """A plan, every file that will be sent (relative name, content), and the folder for the evidence."""

    plan: Plan
    files: tuple[tuple[str, bytes], ...]
    evidence: Path


def prepare(settings: Settings, model: Model | None, secrets: Mapping[str, str]) -> Prepared:
    """Preregister a run: `plan.json` lies in its evidence folder when this returns.

    `model` is None for the lab model; `secrets` (name → value) must not stand in anything that is sent. Raises
    InvalidInput or UsageError with every issue, EmptyCorpus where nothing would run.
    """
    version = settings.version()
    template = templates.load(settings.prompts, version)
    corpus = corpora.load(settings.fixtures, version)
    seam, seam_source = _seam(settings.seam)
    now = datetime.now(UTC)
    plan = plans.preregister(
        template,
        corpus,
        run_id=f"{now:%Y%m%dT%H%M%SZ}-{random.token_hex(3)}",
        created_at=now.isoformat(timespec="seconds"),
        repeat=settings.repeat,
        concurrency=settings.concurrency,
        endpoint=LAB_ENDPOINT if model is None else model.endpoint,
        seam=seam,
    )
    files = [("plan.json", plan.to_json().encode())]
    files += [(f"fixtures/{f.file}", (settings.fixtures / f.file).read_bytes()) for f in corpus.fixtures]
    files += [
        (f"prompts/{path.name}", path.read_bytes())
        for path in templates.files(settings.prompts, version)
        if path.exists()
    ]
    if seam is not None:
        files.append((seam.file, seam_source))
    leaks.refuse(files, secrets)
    _unchanged(plan, dict(files))
    prepared = Prepared(plan, tuple(files), (settings.out / plan.run_id).resolve())
    try:
        write_whole(prepared.evidence / "plan.json", plan.to_json())
    except OSError as error:
        raise UsageError(
            f"{settings.out} can't be written to: {error.strerror}", hint="choose another with --out"
        ) from error
    return prepared


def laptop_secrets(model: Model | None) -> dict[str, str]:
    """Plant a fresh canary in this process's environment; it and the machine's own secrets, name → value."""
    os.environ[CANARY_NAME] = random.token_hex(16)
    found = {CANARY_NAME: os.environ[CANARY_NAME], **leaks.environment_secrets(os.environ)}
    of_model = {} if model is None else model.secrets()
    return found | {name: value for name, value in of_model.items() if len(value) >= SHORTEST_KEY}


def _seam(configured: str | None) -> tuple[Seam | None, bytes]:
    if configured is None:
        return None, b""
    file, found, function = configured.rpartition(":")
    path = Path(file)
    if not found or not function.isidentifier() or path.suffix != ".py":
        raise UsageError(f"seam {configured!r} is not path.py:function")
    if path.exists() and not path.is_file():
        raise InvalidInput("the seam can't be used", [Issue(file, "", "is not a regular file")])
    try:
        source = path.read_bytes()
    except OSError as error:
        raise InvalidInput("the seam can't be used", [Issue(file, "", f"can't be read: {error.strerror}")]) from error
    return Seam(path.name, function, hashlib.sha256(source).hexdigest()), source


def _unchanged(plan: Plan, files: Mapping[str, bytes]) -> None:
    """What was read for the plan and what will be sent are the same bytes, even if somebody is editing just now."""
    for entry in plan.entries:
        if hashlib.sha256(files[f"fixtures/{entry.file}"]).hexdigest() != entry.sha256:
            raise RehearsalError(f"fixtures/{entry.file} changed while it was read", hint="run it again")
