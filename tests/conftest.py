"""What every test may use: the root of the repository, and the programs of drills that it must not leave behind."""

import signal
from pathlib import Path

import pytest

# A shell that starts the suite in the background, or nohup, makes it ignore these; the programs that tests start would too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent
