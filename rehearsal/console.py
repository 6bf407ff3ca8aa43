"""The only module that writes to the terminal: steps, progress, tables, errors with a hint.

What a model wrote is untrusted text: nothing of it is ever read as markup, and no control character of it
reaches the screen.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, cast

from rich import box
from rich.console import Console as Rich
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from rehearsal.runner.errors import Failure

STYLES = {
    "pass": "green",
    "green": "green",
    "fail": "bold red",
    "red": "bold red",
    "error": "yellow",
    "none": "yellow",
}
PIPE_WIDTH = 140  # columns of a table where nobody has a terminal: a log, a file
# Format characters include the bidi controls, which could show a sentence backwards.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def safe(text: object) -> str:
    """`text` with every character that could steer a terminal written out as an escape; line ends become spaces."""
    return "".join(letter if unicodedata.category(letter) not in _UNSAFE else _spelled(letter) for letter in str(text))


def _spelled(letter: str) -> str:
    return " " if letter in "\n\r\t" else letter.encode("unicode_escape").decode()


class Outlet:
    """A standard stream that may go away (a closed terminal, `| head`): then its words are dropped, and nothing fails.

    A tear-down must not depend on somebody reading about it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:
        """The stream's own."""
        return self._stream.encoding or "ascii"

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The stream's own."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Write what the stream's encoding can hold, the rest as escapes."""
        spelled = text.encode(self.encoding, "backslashreplace").decode(self.encoding)
        with self._lasting():
            self._stream.write(spelled)
        return len(text)

    def flush(self) -> None:
        """Flush, if somebody is there."""
        with self._lasting():
            self._stream.flush()

    @contextmanager
    def _lasting(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            # What is still buffered has to go somewhere, or the interpreter fails over it at its end.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


class Console:
    """Where a task's words go: standard output, or standard error when standard output is for one JSON object.

    On a terminal there is a live progress bar, elsewhere a plain line an event. NO_COLOR is honoured (by rich).
    Nothing here raises because nobody is listening.
    """

    def __init__(self, *, json_output: bool = False) -> None:
        self._json = json_output
        self._out, complaints = Outlet(sys.stdout), Outlet(sys.stderr)
        self._rich = _rich(complaints if json_output else self._out)
        self._errors = _rich(complaints)
        self._progress: Progress | None = None
        self._bar: Any = None

    def line(self, text: str, *, style: str = "") -> None:
        """One line."""
        self._rich.print(Text("  ".join(safe(part) for part in text.split("\n")), style=style))

    def step(self, run_id: str, text: str) -> None:
        """One step of a run; every line says which run it is about."""
        self.line(f"{run_id}  {text}")

    def start_attempts(self, expected: int, done: int) -> None:
        """Begin to show attempts."""
        if self._rich.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(complete_style="cyan", finished_style="cyan"),
                MofNCompleteColumn(),
                TextColumn("{task.fields[tally]}"),
                TimeElapsedColumn(),
                TextColumn("gone,"),
                TimeRemainingColumn(),
                TextColumn("left"),
                console=self._rich,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._bar = self._progress.add_task("attempts", total=expected, completed=done, tally="")
            self._progress.start()

    def attempt(self, run_id: str, event: Any, tally: str) -> None:
        """One attempt has ended: `event` as the box wrote it, `tally` the counts so far."""
        if self._progress is not None:
            self._progress.update(self._bar, completed=_whole(event.get("done")), tally=safe(tally))
            if event.get("outcome") == "pass":
                return
        reason = event.get("reason")
        words = f"{event.get('fixture_id')}  attempt {event.get('attempt')}: {event.get('outcome')}"
        self.line(
            f"{run_id}  {words}{f'  {reason}' if reason else ''}",
            style=STYLES.get(str(event.get("outcome")), ""),
        )

    def end_attempts(self) -> None:
        """Take the progress bar away; safe to call twice."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, style_by: int | None = None) -> None:
        """A table; `style_by` is the column whose word colours the row's cell."""
        table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
        for column in columns[:-1]:
            table.add_column(column, no_wrap=True)  # ids are there to be copied
        table.add_column(columns[-1], overflow="fold")
        for row in rows:
            cells = [Text(safe(cell)) for cell in row]
            if style_by is not None:
                cells[style_by].stylize(STYLES.get(str(row[style_by]), ""))
            table.add_row(*cells)
        self._rich.print(table, soft_wrap=False)

    def conclusion(self, verdict: str, text: str) -> None:
        """The last line."""
        self._rich.print(Text(safe(text), style=STYLES.get(verdict, "")))

    def result(self, value: Any) -> None:
        """The one JSON object of `--json`; nothing without it."""
        if self._json:
            self._out.write(json.dumps(value) + "\n")
            self._out.flush()

    def trace(self, error: BaseException) -> None:
        """The traceback of an error, for `--debug`; what a box or a model wrote may stand in it."""
        for line in "".join(traceback.format_exception(error)).splitlines():
            self._errors.print(Text(safe(line)))

    def error(self, error: Failure) -> None:
        """One sentence, what it concerns, and a hint."""
        self.end_attempts()
        first, *more = error.message.split("\n")
        self._errors.print(Text.assemble(("error: ", "bold red"), safe(first)))
        for line in more:
            self._errors.print(Text(f"  {safe(line.strip())}"))
        if error.hint:
            self._errors.print(Text.assemble(("hint: ", "bold"), safe(error.hint)))


def _rich(outlet: Outlet) -> Rich:
    width = None if outlet.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Rich(file=cast("TextIO", outlet), width=width, highlight=False, soft_wrap=True)


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
