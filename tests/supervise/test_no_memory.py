"""Where the machine has no room for one more process, the job starts all the same."""

import errno
import os

import pytest

from perfwatch.processes.linux import Arrival
from perfwatch.run.printer import Printer
from perfwatch.run.sentry import Sentry


@pytest.fixture(params=[errno.ENOMEM, errno.EAGAIN])
def full(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process can be forked any more."""

    def fork() -> int:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(os, "fork", fork)


@pytest.mark.usefixtures("full")
def test_without_a_sentry_every_signal_counts_as_the_launchers_own() -> None:
    """And is passed on to the child."""
    assert not Sentry().felt(Arrival(number=15, sender=1, code=0))


@pytest.mark.usefixtures("full")
def test_a_line_that_cannot_be_printed_waits() -> None:
    """The session has it; nothing fails for its sake."""
    printer = Printer()
    printer.say("perfwatch: hung")

    assert not printer.busy
