"""What every test may use: the root of the repository, guests, a webhook. Which tests are pure, and which come first."""

import os
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import hypothesis
import pytest

from perfwatch_probes.guest import Guests
from tests.purity import PURITY
from tests.webhook import Webhook

# How long an example takes depends on what else runs here: no test is about that.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

# A shell that starts the suite in the background, or nohup, makes it ignore these; the programs that tests start would too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The workers leave no CPU idle: a command at low priority would starve beside the tests that compute.
os.environ.setdefault("PERFWATCH_NICE", "0")

LONGEST_FILES = (
    "screens torch_live root_is_a_guest job_forms attach_targets ncu_live under_slurm attach_surroundings spawned_workers bounds over_ssh "
    "over_kubectl by_rule torch_late attach_armed ranks"
).split()
LONGEST = ("captures", "end_to_end", "security", "fleet")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give each worker a base folder with a short name: tests bind Unix sockets below it, whose paths have 108 bytes at most."""
    worker = getattr(config, "workerinput", {}).get("workerid")
    if worker is not None and config.option.basetemp is not None:
        config.option.basetemp = str(Path(config.option.basetemp).parent / worker.removeprefix("gw"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a file that has no test of the part that is asked for: each worker would, and most files are pure."""
    part = config.option.markexpr.partition(" ")[0]
    if part in ("live", "alone") and collection_path.suffix == ".py":
        return f"mark.{part}" not in collection_path.read_text() or None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test that is not live as pure. Workers take the longest files first, then the folders with the longest tests."""
    for item in items:
        if item.get_closest_marker("live") is None:
            item.add_marker(pytest.mark.pure)
    if hasattr(config, "workerinput"):
        turns = {f"test_{name}": number for number, name in enumerate(LONGEST_FILES)}
        items.sort(key=lambda item: (turns.get(item.path.stem, len(turns)), item.path.parent.name not in LONGEST))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print why tests were skipped: one line for each reason, with the number of tests."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    if reasons:
        terminalreporter.section("skipped")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:4} {reason}")


def _purity_of(item: pytest.Item) -> AbstractContextManager[None]:
    return nullcontext() if item.get_closest_marker("live") is not None else PURITY.enforced()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Set up a pure test without processes, sleeps and connections."""
    with _purity_of(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Run a pure test without processes, sleeps and connections."""
    with _purity_of(item):
        return (yield)


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
