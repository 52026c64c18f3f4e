"""Where no process has torch loaded at the end of the look: that is what is said."""

from perfwatch.recording.recording import Record
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch_probes.readings import Process
from tests.sessions import session


def summary(torch_loaded: bool | None) -> str:
    """Of a shell with a Python below it, at which nobody has looked any closer."""
    shell = Process(pid=10, start_ticks=1, parent_pid=1, name="bash", command=("bash",), torch_loaded=False)
    python = Process(
        pid=11, start_ticks=2, parent_pid=10, name="python", command=("python", "a.py"), python=True,
        torch_loaded=torch_loaded,
    )  # fmt: skip
    history = History((Record(0.0, one) for one in (shell, python)), 25.0)
    return judge(Case(history, session(), ())).summary


def test_a_tree_without_torch_is_said_to_be_none_that_trains() -> None:
    """With the names of what is there."""
    assert summary(False) == "no training is seen: no process of this tree (bash 10, python 11) has torch loaded"


def test_what_is_hidden_or_has_torch_is_not_said_to_be_none() -> None:
    """Missing is not zero."""
    assert not any("no training is seen" in summary(loaded) for loaded in (None, True))
