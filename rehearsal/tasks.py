"""One Invoke task a verb: flags in, one call, exit code out.

Nothing heavy is imported before a task runs, so that `invoke --list` is quick.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.parser.parser import ParseMachine
from invoke.tasks import task

from rehearsal.console import Console
from rehearsal.runner.errors import Failure, Interrupted, RehearsalError, UsageError
from rehearsal.settings import NAMES, Settings

Flag = str | None  # not given, or a text that `Settings` checks: Invoke would read a default of 1 as a type

_RUN = {
    "template": "version under prompts/ (default: the configured one, or the only one)",
    "fixtures": "folder of the corpus (default: fixtures)",
    "prompts": "folder of the templates (default: prompts)",
    "repeat": "attempts of each fixture (default: 1)",
    "concurrency": "attempts at a time (default: 8)",
    "out": "folder for the evidence (default: .rehearsal/runs)",
}
_BOX = {
    "box": "kind of box: loopback or host (default: loopback)",
    "host": "user@name[:port] of a machine that answers SSH, for --box host",
    "ttl": "seconds after which the box ends by itself (default: 3600)",
}
_BOX_ID = {"box_id": "which box (default: the only one that is up)"}
_JSON = {"json": "one JSON object on standard output, and progress on standard error"}


def _verb(**flags: str) -> Callable[[Callable[..., int]], Any]:
    """Make a task of a function that returns an exit code, with a help text for each flag.

    Errors become one sentence, a hint and their documented code; a traceback is for `invoke --debug`.
    """

    def decorate(function: Callable[..., int]) -> Any:
        @functools.wraps(function)
        def run(context: Context, **given: Any) -> None:
            try:
                code = function(context, **given)
            except (RehearsalError, Interrupted) as error:
                code = _explain(error, error, bool(given.get("json")))
            except KeyboardInterrupt as error:
                code = _explain(Interrupted("interrupted"), error, bool(given.get("json")))
            except Exception as error:
                defect = f"a defect in the kit: {type(error).__name__}: {error}"
                hint = "run it again as `invoke --debug …` and report what it prints"
                code = _explain(RehearsalError(defect, hint=hint), error, bool(given.get("json")))
            if code:
                raise Exit(code=code)

        return task(run, help={name.replace("_", "-"): text for name, text in flags.items()}, auto_shortflags=False)

    return decorate


def _explain(error: Failure, cause: BaseException, json: bool) -> int:
    console = Console(json_output=json)
    if _debugging():
        console.trace(cause)
    console.error(error)
    nothing = dict.fromkeys(("run_id", "evidence", "counts", "box"))
    console.result({**nothing, "verdict": "none", "exit_code": error.exit_code, "reason": error.message})
    return error.exit_code


def _debugging() -> bool:
    return logging.getLogger("invoke").isEnabledFor(logging.DEBUG)


def _settings(context: Context, **flags: Any) -> Settings:
    configured = context.config.get("rehearsal", {})
    return Settings.read(dict(configured or {}), flags)


@_verb(**_RUN, **_BOX, keep="leave the box up until its time is over", **_JSON)
def rehearse(
    context: Context,
    template: Flag = None,
    fixtures: Flag = None,
    prompts: Flag = None,
    box: Flag = None,
    host: Flag = None,
    repeat: Flag = None,
    concurrency: Flag = None,
    ttl: Flag = None,
    keep: bool = False,
    out: Flag = None,
    json: bool = False,
) -> int:
    """Rehearse the prompt: a throwaway box, the frozen corpus, a verdict, and nothing left behind."""
    from rehearsal.rehearse import Rehearsal

    settings = _settings(
        context,
        template=template,
        fixtures=fixtures,
        prompts=prompts,
        box=box,
        host=host,
        repeat=repeat,
        concurrency=concurrency,
        ttl=ttl,
        keep=keep or None,
        out=out,
    )
    console = Console(json_output=json)
    result = Rehearsal(settings, console).rehearse()
    if result.error is not None:
        if _debugging():
            console.trace(result.error)
        console.error(result.error)
    console.result(result.to_json())
    return result.exit_code


@_verb(**_BOX, **_JSON)
def provision(context: Context, box: Flag = None, host: Flag = None, ttl: Flag = None, json: bool = False) -> int:
    """Make a box and keep it up, for a prompt fight: sync, run, pull, edit, again."""
    from rehearsal import fight

    return fight.provision(_settings(context, box=box, host=host, ttl=ttl, keep=True), Console(json_output=json))


@_verb(**_RUN, **_BOX_ID, **_JSON)
def sync(
    context: Context,
    template: Flag = None,
    fixtures: Flag = None,
    prompts: Flag = None,
    repeat: Flag = None,
    concurrency: Flag = None,
    out: Flag = None,
    box_id: Flag = None,
    json: bool = False,
) -> int:
    """Send the corpus and the template as they are now to a box that is up: a new run."""
    from rehearsal import fight

    settings = _settings(
        context,
        template=template,
        fixtures=fixtures,
        prompts=prompts,
        repeat=repeat,
        concurrency=concurrency,
        out=out,
    )
    return fight.sync(settings, box_id, Console(json_output=json))


@_verb(**_BOX_ID, **_JSON)
def run(_context: Context, box_id: Flag = None, json: bool = False) -> int:
    """Run what was sent to the box; after a break, only what is missing."""
    from rehearsal import fight

    return fight.run(box_id, Console(json_output=json))


@_verb(**_BOX_ID, **_JSON)
def pull(_context: Context, box_id: Flag = None, json: bool = False) -> int:
    """Fetch the rows from the box and judge them here."""
    from rehearsal import fight

    return fight.pull(box_id, Console(json_output=json))


@_verb(**_BOX_ID, **_JSON)
def teardown(_context: Context, box_id: Flag = None, json: bool = False) -> int:
    """End one box and everything on it."""
    from rehearsal import fight

    return fight.teardown(box_id, Console(json_output=json))


@_verb(all="also those that are gone", **_JSON)
def boxes(_context: Context, all: bool = False, json: bool = False) -> int:  # noqa: A002  (the flag's name)
    """List the boxes that are up, or may be."""
    from rehearsal import upkeep

    return upkeep.boxes(Console(json_output=json), everything=all)


@_verb(dry_run="say what would be ended, and end nothing", **_JSON)
def cleanup(_context: Context, dry_run: bool = False, json: bool = False) -> int:
    """End every box that is not gone, whatever became of the process that made it."""
    from rehearsal import upkeep

    return upkeep.cleanup(Console(json_output=json), dry_run=dry_run)


@_verb(**_JSON)
def doctor(context: Context, json: bool = False) -> int:
    """Say what is here, what is missing, and what to do about it."""
    from rehearsal import doctor as examination

    return examination.examine(_settings(context), Console(json_output=json))


@_verb(port="port on 127.0.0.1 (default: a free one)")
def lab(_context: Context, port: Flag = None) -> int:
    """Serve the lab model to other programs, until Ctrl-C."""
    from rehearsal import lab_service

    return lab_service.serve(port, Console())


@_verb()
def init(_context: Context) -> int:
    """Lay out tasks.py, invoke.yaml, fixtures/ and prompts/ in this folder; what is there stays as it is."""
    from rehearsal import starter

    return starter.lay_out(Console())


def _usage_error(_machine: ParseMachine, message: str) -> NoReturn:
    """Invoke ends with 1 where it can't read the command line, and here 1 means red. It has no hook for that."""
    message = re.sub(r"<Argument: ([\w-]+)[^>]*>", lambda flag: f"--{flag[1].replace('_', '-')}", message)
    raise Exit(f"error: {message}\nhint: `invoke --list` shows the tasks, `invoke --help TASK` its flags", code=2)


def _explain_configuration(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Invoke reads its configuration before any task, lets what it finds there escape, and ends with 1."""
    frames = traceback.extract_tb(trace)
    if not any(Path(frame.filename).parts[-2:] == ("invoke", "config.py") for frame in frames):
        sys.__excepthook__(kind, error, trace)
        return
    words = " ".join(str(error).split())[:300]
    unreadable = UsageError(
        f"the configuration can't be used: {words}",
        hint="look at invoke.yaml, ~/.invoke.yaml and the INVOKE_… variables: all is under `rehearsal:`, name by name",
    )
    code = _explain(unreadable, error, "--json" in sys.argv)
    sys.stdout.flush()
    os._exit(code)


sys.excepthook = _explain_configuration
setattr(ParseMachine, "error", _usage_error)  # noqa: B010  (mypy refuses a plain assignment to a method)

namespace = Collection(rehearse, provision, sync, run, pull, teardown, boxes, cleanup, doctor, lab, init)
# Invoke reads INVOKE_REHEARSAL_… only for keys that it knows; None keeps it from guessing a type.
namespace.configure({"rehearsal": dict.fromkeys(NAMES)})
