"""What every test may use: the root of the repository, guests, and a webhook."""

import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from perfwatch_probes.guest import Guests
from tests.webhook import Webhook

# How long an example takes depends on what else runs here: no test is about that.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

# A shell that starts the suite in the background, or nohup, makes it ignore these; the programs that tests start would too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture
def guests() -> Iterator[Guests]:
    """Children that have become another user; ended after the test."""
    found = Guests()
    yield found
    found.close()


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    """One that answers 200 until it is told otherwise."""
    hook = Webhook()
    yield hook
    hook.close()
