"""Ctrl-C, SIGTERM and SIGHUP as one exception, so that tear-down runs, and runs to its end.

SIGTERM and SIGHUP skip every `finally` by default, and a second Ctrl-C would tear the tear-down apart.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType

from rehearsal.runner.errors import Interrupted

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
UNWINDING_S = 5.0  # how long the way to the tear-down may take, before another signal pushes again


class Signals:
    """While entered, a signal raises Interrupted in the main thread; those that follow at once are only announced.

    After `shield()` none raises any more: `received` tells whether one came. `announce` is called with one sentence.
    """

    def __init__(self, announce: Callable[[str], None]) -> None:
        self._announce = announce
        self._shielded = False
        self._raised_at: float | None = None
        self._before: dict[signal.Signals, object] = {}
        self.received: signal.Signals | None = None

    def __enter__(self) -> Signals:
        for number in CAUGHT:
            self._before[number] = signal.getsignal(number)
            # A shell's `nohup` and `&` ignore signals on purpose: leave those ignored.
            if self._before[number] is not signal.SIG_IGN:
                signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)  # type: ignore[arg-type]

    def shield(self) -> None:
        """From now on nothing is interrupted: tear-down has begun."""
        self._shielded = True

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)
        if self._shielded:
            self._announce("still tearing down: it takes a few seconds, and nothing is left behind then")
            return
        now = time.monotonic()
        if self._raised_at is not None and now - self._raised_at < UNWINDING_S:
            self._announce("stopping, and then tearing down")
            return
        self._raised_at = now
        raise Interrupted(f"interrupted by {signal.Signals(number).name}")
