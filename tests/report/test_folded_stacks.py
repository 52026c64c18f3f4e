"""Equal stacks of many ranks become few groups with rank ranges, and fit on a page."""

from rich.console import Console

from perfwatch.recording.recording import Record
from perfwatch.report.folded_stacks import Place, fold, newest
from perfwatch.report.folding import FoldedStacks, as_text
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.job import rank_ranges
from perfwatch_probes.readings import Frame, Process, Stack
from tests.sessions import session

PAGE_LINES = 60
C10D = "/env/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
LOADER = "/env/lib/python3.12/site-packages/torch/utils/data/dataloader.py"
QUEUES = "/usr/lib/python3.12/multiprocessing/queues.py"
CONNECTION = "/usr/lib/python3.12/multiprocessing/connection.py"

ALL_REDUCE: tuple[Frame, ...] = (
    Frame("all_reduce", C10D, 2501),
    Frame("train", "/app/train.py", 20),
    Frame("<module>", "/app/train.py", 30),
)
BARRIER: tuple[Frame, ...] = (
    Frame("barrier", C10D, 4159),
    Frame("train", "/app/train.py", 24),
    Frame("<module>", "/app/train.py", 30),
)
ASLEEP: tuple[Frame, ...] = (
    Frame("__getitem__", "/app/train.py", 9),
    Frame("fetch", LOADER, 1),
    Frame("<module>", "/app/train.py", 30),
)


def loading(line: int, deep: bool) -> tuple[Frame, ...]:
    """A rank that polls for a batch: its innermost frames are never twice the same."""
    inside = (Frame("poll", CONNECTION, line), Frame("get", QUEUES, line)) if deep else (Frame("get", QUEUES, line),)
    return (*inside, Frame("__next__", LOADER, line), Frame("train", "/app/train.py", 18))


def test_ranks_are_written_as_ranges() -> None:
    """A gap of one rank splits the range; doubles and disorder do not matter."""
    assert rank_ranges([*range(128, 512), *range(127), 5]) == "0-126,128-511"
    assert rank_ranges([3, 1]) == "1,3"
    assert rank_ranges([]) == ""


def test_512_ranks_of_which_one_matters_fit_on_a_page() -> None:
    """The 511 are one line with their ranges, the one rank and its worker are named, and the page says who is absent."""
    stacks = [(Place(1000 + rank, rank), ALL_REDUCE) for rank in range(512) if rank not in (127, 300)]
    stacks += [(Place(1127, 127), loading(3, deep=True)), (Place(9001, 127, "worker"), ASLEEP)]
    folded = fold(stacks, world_size=512)
    page = as_text(folded)

    assert [group.ranks[:1] for group in folded.outliers] == [(127,), (127,)]
    assert folded.dominant is not None
    assert len(folded.dominant.ranks) == 510
    assert list(folded.absent) == [300]
    assert "ranks 0-126,128-299,301-511 (510 of 511)" in page
    assert "rank 127, pid 1127\n    poll (connection.py:3)" in page
    assert "1 worker of rank 127, pid 9001\n    __getitem__ (train.py:9)" in page
    assert "no stack of rank 300 (1 of 512)" in page
    assert len(page.splitlines()) <= PAGE_LINES


def test_lines_of_the_library_do_not_split_a_group_but_lines_of_the_program_do() -> None:
    """A polling loop is one group whatever line it is at; two collectives called from two lines are two."""
    polling = [(Place(rank, rank), loading(rank, deep=False)) for rank in range(8)]
    at_odds = [(Place(8, 8), ALL_REDUCE), (Place(9, 9), BARRIER)]

    assert [len(group.places) for group in fold(polling + at_odds).groups] == [8, 1, 1]


def test_where_a_page_would_not_do_variants_inside_a_library_call_are_put_together() -> None:
    """Twenty depths inside one call of the loader are one group that says how many there were."""
    deep = [(Frame(f"inner{n}", QUEUES, 1), *loading(1, deep=False)) for n in range(20)]
    folded = fold([(Place(rank, rank), frames) for rank, frames in enumerate(deep)])

    assert [(len(group.places), group.variants) for group in folded.groups] == [(20, 20)]
    assert "20 variants inside" in as_text(folded)


def test_512_ranks_that_all_differ_still_fit_on_a_page() -> None:
    """What is not shown is counted."""
    folded = fold([(Place(rank, rank), (Frame("step", "/app/train.py", rank),)) for rank in range(512)])
    page = as_text(folded)

    assert len(page.splitlines()) <= PAGE_LINES
    assert "496 more stacks of 496 ranks" in page


def test_a_rank_that_two_processes_claim_is_said() -> None:
    """Two hosts that both have rank 0: the group says so, and counts it once."""
    folded = fold([(Place(7, 0, host="a"), ALL_REDUCE), (Place(7, 0, host="b"), ALL_REDUCE), (Place(8, 1), ALL_REDUCE)])

    assert folded.ranks == 2
    assert "1 of them claimed twice on a, b" in as_text(folded)


def test_stacks_come_from_a_history_with_ranks_and_workers_told_apart() -> None:
    """Of two torchrun ranks and a worker, each is placed by its own part in the job; a dead one has no stack."""
    readings: list[Process | Stack] = [
        Process(pid=1, start_ticks=1, parent_pid=0, name="torchrun", command=("torchrun",), python=True),
        *(
            Process(
                pid=10 + n, start_ticks=2, parent_pid=1, name="python", command=(), python=True, rank=n, world_size=2
            )
            for n in range(2)
        ),
        Process(pid=20, start_ticks=3, parent_pid=11, name="pt_data_worker", command=(), python=True, rank=1),
        Stack(pid=10, tid=10, frames=ALL_REDUCE),
        Stack(pid=11, tid=11, frames=loading(1, deep=True)),
        Stack(pid=20, tid=20, frames=ASLEEP),
    ]
    history = History((Record(0.0, reading) for reading in readings), 1.0)
    found = newest(history, Case(history, session()).job, host="node-b")

    assert [(place.rank, place.role, place.host) for place, _ in found] == [
        (0, "rank", "node-b"),
        (1, "rank", "node-b"),
        (1, "worker", "node-b"),
    ]


def test_a_hostile_function_name_cannot_steer_the_terminal() -> None:
    """Names come from the job: a control character is shown as a question mark, and a narrow terminal cuts the line."""
    folded = fold([(Place(1, 0), (Frame("evil\x1b[2J", "/app/train.py", 1),))])
    console = Console(width=40, file=None, record=True, force_terminal=False)
    with console.capture() as shown:
        console.print(FoldedStacks(folded))

    assert "\x1b" not in as_text(folded)
    assert "evil?[2J" in shown.get()
