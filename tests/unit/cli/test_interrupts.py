"""Deferred interrupts: the first SIGINT is deferred, the second raises."""

import signal

import pytest

from elasticml.cli.submit_flow import defer_interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_kept_until_it_is_asked_for(number):
    done = []
    before = signal.getsignal(number)
    with defer_interrupts() as held:
        signal.raise_signal(number)
        done.append("went on")
    assert done == ["went on"]
    assert signal.getsignal(number) == before
    with pytest.raises(KeyboardInterrupt):
        held.act()
    held.act()  # once is enough


def test_without_an_interrupt_nothing_is_raised():
    with defer_interrupts() as held:
        pass
    held.act()


def test_a_second_interrupt_raises_at_once():
    before = signal.getsignal(signal.SIGINT)
    with defer_interrupts():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before
