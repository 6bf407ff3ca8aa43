from __future__ import annotations

import signal

import pytest

from rehearsal.runner.errors import Interrupted
from rehearsal.signals import CAUGHT, Signals


@pytest.mark.parametrize("number", CAUGHT)
def test_the_first_raises_and_every_later_one_is_only_announced(number: signal.Signals) -> None:
    said: list[str] = []
    with Signals(said.append) as signals:
        with pytest.raises(Interrupted, match=f"interrupted by {number.name}"):
            signal.raise_signal(number)
        assert (signals.received, said) == (number, [])
        for later in CAUGHT:
            signal.raise_signal(later)
        assert signals.received is number
    assert len(said) == len(CAUGHT)
    assert "tearing down" in said[0]


def test_under_the_shield_nothing_raises_and_it_is_remembered() -> None:
    said: list[str] = []
    with Signals(said.append) as signals:
        signals.shield()
        assert signals.received is None
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert (signals.received, len(said)) == (signal.SIGTERM, 2)


def test_handlers_are_put_back_even_after_an_exception() -> None:
    before = [signal.getsignal(number) for number in CAUGHT]
    with pytest.raises(Interrupted), Signals(lambda _: None):
        signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in CAUGHT] == before


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals(lambda _: None) as signals:
            signal.raise_signal(signal.SIGHUP)
        assert signals.received is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
