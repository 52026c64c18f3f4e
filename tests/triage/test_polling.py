"""The file that somebody waits for is named by the variables around the wait."""

import pytest

from perfwatch.probes.readings import Frame, Stack
from perfwatch.triage.history import History
from perfwatch.triage.roles.job import read_job
from perfwatch.triage.waits.node import node_of
from perfwatch.triage.waits.polling import path_of
from tests.triage.rank_looks import FIRST, MODULE, TRAIN, process


@pytest.mark.parametrize(
    ("texts", "path"),
    [
        (("/runs/a", "/runs/a/best.pt"), "/runs/a/best.pt"),
        (("/runs/a/best.pt", "/runs/a/"), "/runs/a/best.pt"),
        (("/runs/a", "/runs/a2/best.pt"), "/runs/a"),
        (("fold", "best.pt"), "best.pt"),
        (("fold",), ""),
    ],
)
def test_beside_the_path_of_a_file_its_folder_is_not_what_is_waited_for(texts: tuple[str, ...], path: str) -> None:
    """The folder is there: it was made before, and is often in a variable of its own."""
    history = History()
    history.add(0.0, process(FIRST, 1, "python train.py"))
    history.add(1.0, Stack(pid=FIRST, tid=FIRST, frames=(Frame("waits", TRAIN, 40), MODULE), texts=texts))

    assert path_of(history, node_of(history, read_job(history), FIRST)) == path
