"""`invoke lab`: the lab model as an endpoint for other programs."""

from __future__ import annotations

from rehearsal import lab
from rehearsal.console import Console
from rehearsal.runner.errors import ModelError, UsageError
from rehearsal.signals import Signals


def serve(port: str | None, console: Console) -> int:
    """Serve on 127.0.0.1 until interrupted; UsageError for a port that is none, ModelError where the model ends."""
    chosen = port or "0"
    if not (chosen.isascii() and chosen.isdigit() and int(chosen) < 65536):
        raise UsageError(f"--port must be a whole number up to 65535, not {chosen[:40]!r}")
    with Signals(console.line), lab.spawn(port=int(chosen)) as running:
        endpoint = running.endpoint()
        console.line(f"{endpoint.model} answers chat completions; Ctrl-C ends it")
        console.line(f"export MODEL_URL={endpoint.url}")
        running.wait()
    raise ModelError("the lab model has ended by itself", hint="start it again; `invoke doctor` looks at what it needs")
