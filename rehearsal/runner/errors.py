"""The one error tree of the kit; whose fault it is decides the class.

    RehearsalError                 exit code
    ├── EmptyCorpus                1   nothing would have been measured
    ├── UsageError                 2   the caller: flags, configuration
    │   └── InvalidInput           2   a file of the caller's: fixture, template, plan; carries every issue
    ├── NoVerdict                  3   nobody could measure: the run is not complete
    │   ├── BoxError               3   the box failed, or is not what was asked for
    │   ├── LinkError              3   the connection to the box failed
    │   ├── ModelError             3   the model's endpoint failed
    │   └── VoidRun                3   the run is complete and must not be believed
    └── TeardownIncomplete         4   something may be left; the message names it

    Interrupted                  130   Ctrl-C, SIGTERM, SIGHUP: a KeyboardInterrupt, so no `except Exception` takes it

A message is lower case without a full stop and names the thing it concerns; the remedy is a separate hint.
"""

from __future__ import annotations

from dataclasses import dataclass


class RehearsalError(Exception):
    """Anything the kit refuses or fails to do.

    `message` names place and cause, `hint` the remedy (may be empty). `exit_code` is the process's.
    """

    exit_code = 3

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class EmptyCorpus(RehearsalError):
    """No fixture would run: an empty success has to be impossible (the article)."""

    exit_code = 1


class UsageError(RehearsalError):
    """A flag or a setting that can't be used as it is."""

    exit_code = 2


@dataclass(frozen=True, order=True)
class Issue:
    """One thing wrong in one file: `file`, `pointer` (JSON pointer, or '' for the whole file), `problem`."""

    file: str
    pointer: str
    problem: str

    def __str__(self) -> str:
        place = f"{self.file}#{self.pointer}" if self.pointer else self.file
        return f"{place}: {self.problem}"


class InvalidInput(UsageError):
    """Files that can't be used: every issue of every file at once, in `issues`."""

    def __init__(self, what: str, issues: list[Issue], *, hint: str = "") -> None:
        self.issues = sorted(issues)
        count = f"{len(issues)} issue{'s' if len(issues) != 1 else ''}"
        lines = "".join(f"\n  {issue}" for issue in self.issues)
        super().__init__(f"{what}: {count}{lines}", hint=hint)


class NoVerdict(RehearsalError):
    """The run did not complete, so there is nothing to believe, good or bad."""


class BoxError(NoVerdict):
    """The box could not be made, or does not behave as a box must."""


class LinkError(NoVerdict):
    """The SSH connection to a box could not be opened or was lost for good."""


class ModelError(NoVerdict):
    """The model's endpoint could not be reached or did not answer with a reply."""


class VoidRun(NoVerdict):
    """Every row is there, yet the run must not be believed (digests, re-judgement, leaked environment)."""


class TeardownIncomplete(RehearsalError):
    """A box could not be shown to be gone."""

    exit_code = 4


class Interrupted(KeyboardInterrupt):
    """The user, or the system, asked to stop.

    No Exception: on its way to the tear-down it passes through code, ours and others', that survives any Exception.
    """

    exit_code = 130
    hint = ""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


Failure = RehearsalError | Interrupted  # what ends a task early, with a message, a hint and an exit code
