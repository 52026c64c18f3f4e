"""Whose code a line is: the program's own, a library's, torch's or CPython's."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, GpuBinding, Process, SourceLine, Stack, Thread, Wait
from tests.sessions import session
from tests.training import BACKWARD as LIBRARY_FRAMES_BACKWARD
from tests.training import FORWARD, OPTIMIZER, SLEEP, Training
from tests.triage.rank_looks import FIRST, STOPPED, TRAIN, Frames, job, judged, process, runs, stands, uses
from tests.triage.rank_looks import FOR_EVER as LIBRARY_FRAMES_FOR_EVER
from tests.triage.rank_looks import MODULE as LIBRARY_FRAMES_MODULE

# Whose code a line is: the program's own, wherever it was installed, torch's, another package's, or CPython's.


FOR_EVER = Wait(call="futex", number=202, kind="futex", forever=True)
MAIN = Frame("main", "/app/train.py", 7)
WHEELS = "/home/user/.pex/installed_wheels/0/8c1f"


def stood(*stacks: tuple[Frame, ...]) -> History:
    """A process that was seen in these stacks, one after the other, and has stood in the last one for long."""
    history = History(at=30.0)
    history.add(0.0, Process(pid=PID, start_ticks=9, parent_pid=1, name="python", command=("python", "train.py"),
                             python=True, torch_loaded=True))  # fmt: skip
    for number, frames in enumerate(stacks[:-1]):
        history.add(number / 100, Stack(pid=PID, tid=PID, frames=frames))
    for second in range(1, 31):
        at = float(second)
        history.add(at, Thread(pid=PID, tid=PID, name="python", state="S", cpu_seconds=5.0, run_seconds=5.0,
                               voluntary_switches=9, ran_ago_seconds=at, wait=FOR_EVER))  # fmt: skip
        history.add(at, Stack(pid=PID, tid=PID, frames=stacks[-1], samples=10, span_seconds=0.9))
    return history


def stands_in(*stacks: tuple[Frame, ...]) -> Verdict:
    """What is said of such a process."""
    return judge(Case(stood(*stacks), session(root_pids=(PID,))))


def culprit(*stacks: tuple[Frame, ...]) -> str | None:
    """The line of the program that is named for it."""
    return stands_in(*stacks).culprits[0].frame


@pytest.mark.parametrize(
    "file",
    [
        "/usr/lib/python3/dist-packages/torch/nn/modules/module.py",
        "/opt/conda/lib/python3.11/site-packages/torch/optim/optimizer.py",
        "/home/user/pytorch/torch/cuda/__init__.py",
        f"{WHEELS}/torch-2.6.0-cp311-cp311-linux_x86_64.whl/torch/autograd/graph.py",
        "/opt/libraries/torch/nn/modules/module.py",
        "/work/checkout/torch/utils/data/_utils/worker.py",
    ],
)
def test_torch_is_known_wherever_it_lies(file: str) -> None:
    """Installed, built in a checkout, in the unpacked wheels of a PEX, or put into a folder by ``pip install --target``."""
    assert culprit((Frame("f", file, 1), MAIN)) == "main (train.py:7)"


def test_a_wheel_of_a_pex_is_a_package() -> None:
    """Its name is the folder's inside the wheel."""
    frame = Frame("get", f"{WHEELS}/requests-2.32.3-py3-none-any.whl/requests/api.py", 59)
    verdict = stands_in((frame, MAIN))

    assert verdict.culprits[0].frame == "main (train.py:7)"
    assert "waits in native code of requests" in verdict.summary


@pytest.mark.parametrize(
    "file",
    [
        "/home/user/torch/train.py",
        "/home/user/torch/utils/data/mine.py",
        "/home/user/my-packages/nn/modules/block.py",
        "/home/user/.pex/unzipped_pexes/1/4f2a/train.py",
        "/tmp/ipykernel_71/2353.py",
    ],
)
def test_a_program_that_is_named_like_a_library_is_the_program(file: str) -> None:
    """A folder called torch is not torch."""
    assert culprit((Frame("f", file, 1), MAIN)) == f"f ({Path(file).name}:1)"


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed here: pip install torch")
def test_every_collective_of_the_torch_that_is_installed_is_known() -> None:
    """They are renamed now and then (2.13: all_gather_single): a rank would be taken for one that is elsewhere."""
    torch = find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    text = (Path(torch.origin).parent / "distributed" / "distributed_c10d.py").read_text()
    logged = set(re.findall(r"^@_exception_logger\n(?:@.*\n)*def (\w+)\(", text, re.MULTILINE))

    calls = {name: (Frame(name, f"{PACKAGES}/torch/distributed/distributed_c10d.py", 9), MAIN) for name in logged}
    unknown = {name for name, stack in calls.items() if stands_in(stack).wait_chain[0].waits_for != name}

    assert "all_reduce" in logged
    assert unknown == {"init_process_group"}


def test_a_forked_worker_is_in_what_it_does_itself_and_not_where_its_parent_forked_it() -> None:
    """Below its own start lies the training loop, in which it never was."""
    library = "/usr/lib/python3.11/"
    frames = (
        ("__getitem__", "/usr/lib/python3.11/site-packages/torchvision/datasets/fakedata.py", 52),
        ("_worker_loop", "/usr/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", 349),
        ("run", f"{library}multiprocessing/process.py", 108),
        ("_bootstrap", f"{library}multiprocessing/process.py", 314),
        ("__init__", "/usr/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 1150),
        ("train", "/home/user/train.py", 40),
    )
    stack = tuple(Frame(function=name, file=file, line=line) for name, file, line in frames)

    assert culprit(stack) == "__getitem__ (fakedata.py:52)"


PID = 700
STANDARD, PACKAGES = "/usr/lib/python3.11", "/usr/lib/python3.11/site-packages"
RUNPY = (Frame("_run_code", "<frozen runpy>", 88), Frame("_run_module_as_main", "<frozen runpy>", 198))
BACKWARD = (
    Frame("_engine_run_backward", f"{PACKAGES}/torch/autograd/graph.py", 869),
    Frame("backward", f"{PACKAGES}/torch/_tensor.py", 631),
)
FIT = Frame("fit", f"{PACKAGES}/tuner/loop.py", 40)
MODULE = Frame("<module>", f"{PACKAGES}/tuner/cli/train.py", 9)
ENTRY = (Frame("main", f"{PACKAGES}/tuner/cli/__init__.py", 7), Frame("<module>", "/home/user/venv/bin/tuner-train", 8))
RECIPE = Frame("<module>", f"{PACKAGES}/recipes/lora.py", 300)
RUN = (Frame("run_path", "<frozen runpy>", 291), *ENTRY)
SCRIPT = Frame("<module>", "/home/user/train.py", 12)
LIBRARY = Frame("fit", f"{PACKAGES}/keeper/trainer.py", 80)


def stored(*stacks: tuple[Frame, ...], tid: int = PID) -> Stack:
    """The first of these stacks, as triage sees it when it has read them all."""
    history = History(at=float(len(stacks)))
    for at, frames in enumerate(stacks):
        history.add(float(at), Stack(pid=PID, tid=tid, frames=frames))
    return history.series(Stack, PID, tid)[0].reading


@pytest.mark.parametrize(
    "outer", [(MODULE, *RUNPY), ENTRY, (Frame("train", f"{PACKAGES}/tuner/api.py", 3), RECIPE, *RUNPY, *RUN)]
)
def test_what_the_interpreter_was_started_with_is_the_program(outer: tuple[Frame, ...]) -> None:
    """By ``python -m``, by an installed command, and by a recipe that such a command runs."""
    assert culprit((*BACKWARD, FIT, *outer)) == "fit (loop.py:40)"


@pytest.mark.parametrize("parser", ["click/core.py", "typer/main.py", "fire/core.py"])
def test_who_reads_the_command_line_is_not_the_program(parser: str) -> None:
    """An entry point that is a command of click's, typer's or fire's: the program is what they call."""
    command = (Frame("invoke", f"{PACKAGES}/{parser}", 783), Frame("inner", f"{STANDARD}/contextlib.py", 79))
    entry = (Frame("main", f"{PACKAGES}/tuner/cli/__init__.py", 7), *command, *command, ENTRY[-1])
    own = (*BACKWARD, FIT, *entry)

    assert culprit(own) == "fit (loop.py:40)"
    assert f"waits in native code of {parser.partition('/')[0]}" in stands_in(own, entry[1:]).summary


def test_a_package_that_only_starts_the_program_is_none_of_it() -> None:
    """Its launcher has torch loaded, too; once a process is seen to run a file of its own, the package is a library again."""
    launcher, rank = PID + 1, PID
    history = History(at=3.0)
    for pid in (launcher, rank):
        history.add(0.0, Process(pid=pid, start_ticks=9, parent_pid=1, name="python", command=("python",), python=True,
                                 torch_loaded=True))  # fmt: skip
    starts = (Frame("launch", f"{PACKAGES}/keeper/launcher.py", 9), Frame("<module>", "/home/user/venv/bin/keeper", 8))
    trains = (*BACKWARD, LIBRARY, SCRIPT)
    history.add(1.0, Stack(pid=launcher, tid=launcher, frames=starts))
    history.add(1.5, Stack(pid=rank, tid=rank, frames=trains[2:3]))
    history.add(2.0, Stack(pid=rank, tid=rank, frames=trains))
    for second in range(3, 31):
        for pid, frames in ((launcher, starts), (rank, trains[2:])):
            history.add(float(second), Stack(pid=pid, tid=pid, frames=frames, samples=10, span_seconds=0.9))
            history.add(float(second), Thread(pid=pid, tid=pid, name="python", state="S", cpu_seconds=5.0, run_seconds=5.0,
                                              ran_ago_seconds=float(second), wait=FOR_EVER))  # fmt: skip
    history.at = 30.0
    verdict = judge(Case(history, session(root_pids=(launcher, rank))))
    assert "pid 700 at <module> (train.py:12) waits in native code of keeper" in verdict.summary


def test_what_was_read_before_it_was_known_is_seen_alike() -> None:
    """The first look may meet an import, and source may be read before the program is known."""
    history = History(at=3.0)
    history.add(0.0, Stack(pid=PID, tid=PID, frames=(FIT, MODULE, *RUNPY)))
    history.add(0.5, SourceLine(file=FIT.file, line=FIT.line, text="value.item()", calls=("value.item",)))
    history.add(1.0, Stack(pid=PID, tid=PID, frames=(*BACKWARD, FIT, MODULE, *RUNPY)))
    history.add(2.0, Stack(pid=PID, tid=PID, frames=(FIT, MODULE, *RUNPY)))
    first, _, last = (seen.reading for seen in history.series(Stack, PID, PID))
    assert first.frames == last.frames
    line = history.latest(SourceLine, first.frames[0].file, first.frames[0].line)
    assert line is not None
    assert line.reading.calls == ("value.item",)
    assert history.entities(Stack) == [(PID, PID)]
    assert history.of(Stack, PID) == [(PID, PID)]
    assert culprit((FIT, MODULE, *RUNPY), (*BACKWARD, FIT, MODULE, *RUNPY), (FIT, MODULE, *RUNPY)) == "fit (loop.py:40)"


@pytest.mark.parametrize(
    "outer",
    [
        (LIBRARY, SCRIPT),
        (SCRIPT, Frame("run", f"{PACKAGES}/tracer/main.py", 5), Frame("<module>", "/home/user/venv/bin/tracer", 8)),
        (
            Frame("main", f"{PACKAGES}/torch/distributed/run.py", 9),
            Frame("<module>", "/home/user/venv/bin/torchrun", 8),
        ),
        (
            Frame("launch", f"{PACKAGES}/accelerate/x.py", 9),
            Frame("<module>", f"{PACKAGES}/accelerate/y.py", 8),
            *RUNPY,
        ),
    ],
)
def test_a_library_stays_a_library(outer: tuple[Frame, ...]) -> None:
    """Below a program in files of its own, whoever started that, and where a launcher runs nothing but torch."""
    inner = outer if outer[0] is not SCRIPT else (LIBRARY, *outer)

    assert "waits in native code of" in stands_in((*BACKWARD, *inner), inner).summary


def test_a_program_that_is_never_seen_in_torch_is_known_by_its_process() -> None:
    """A long stretch of plain Python shows no frame of torch; that the process has loaded it does."""
    assert culprit((FIT, MODULE, *RUNPY)) == "fit (loop.py:40)"


def test_a_program_without_torch_tells_nothing_of_what_the_training_runs() -> None:
    """A service of a library in the job is started with that library's package, and never calls torch."""
    history, service = stood((LIBRARY, Frame("train", f"{PACKAGES}/tuner/api.py", 3))), PID + 1
    history.add(0.0, Process(pid=service, start_ticks=9, parent_pid=PID, name="python", command=("python",), python=True,
                             torch_loaded=False))  # fmt: skip
    served = (Frame("serve", f"{PACKAGES}/keeper/service.py", 3), Frame("<module>", f"{PACKAGES}/keeper/s.py", 1))
    history.add(0.0, Stack(pid=service, tid=service, frames=served))
    assert "waits in native code of keeper" in judge(Case(history, session(root_pids=(PID,)))).summary


def test_a_marked_file_opens_as_before(tmp_path: Path) -> None:
    """The line of a program is read from its file, wherever the mark stands in the path."""
    file = tmp_path / "site-packages" / "tuner" / "loop.py"
    file.parent.mkdir(parents=True)
    file.write_text("steps\n")
    frame = Frame("fit", str(file), 1)
    seen = stored((*BACKWARD, frame, Frame("<module>", str(file), 9), *RUNPY))
    assert seen.frames[2].file != str(file)
    assert os.path.samefile(seen.frames[2].file, file)


def test_a_loop_that_waits_for_its_card_prepares_nothing() -> None:
    """Each turn ends in a synchronisation, at a full core: what the card does was not read, so nothing is said of a start."""
    sync = Frame("synchronize", f"{PACKAGES}/torch/cuda/__init__.py", 1162)
    turns = [(sync, Frame("run", "/home/user/train.py", line), SCRIPT) for line in (28, 31)]
    history = History(at=30.0)
    history.add(0.0, Process(pid=PID, start_ticks=9, parent_pid=1, name="python", command=("python", "train.py"),
                             python=True, torch_loaded=True))  # fmt: skip
    history.add(0.0, GpuBinding(pid=PID, cuda=True, how="device_files", uuids=("GPU-1",)))
    for line in (28, 31):
        history.add(
            0.5, SourceLine(file="/home/user/train.py", line=line, text="torch.cuda.synchronize()", loops=("for",))
        )
    for second in range(1, 31):
        history.add(float(second), Thread(pid=PID, tid=PID, name="python", state="R", cpu_seconds=float(second),
                                          run_seconds=float(second), ran_ago_seconds=0.0, voluntary_switches=3))  # fmt: skip
        history.add(
            float(second),
            Stack(pid=PID, tid=PID, frames=turns[second > 20], samples=20, span_seconds=1.0),
        )
    verdict = judge(Case(history, session(mode="attach", root_pids=(PID,))))
    assert (verdict.state, verdict.cause) == ("inconclusive", None), verdict.summary


# Frames of libraries are known by package and file, whatever a program calls its own files, and wherever a copy lies.


ORIGINAL, COPY = "/usr/lib/python3.11/multiprocessing", "/v/lib/python3.11/site-packages/multiprocess"
OTHER = "/v/lib/python3.11/site-packages/elsewhere"
LIBRARY_FRAMES_MAIN: Frames = (Frame("main", TRAIN, 9), LIBRARY_FRAMES_MODULE)
CHILD = 300
Names = tuple[tuple[str, str], ...]


def below(folder: str, frames: Names) -> Frames:
    """Frames of a package in this folder, innermost first."""
    return tuple(Frame(function, f"{folder}/{file}", 1) for function, file in frames)


def waits(folder: str, rank: Names, child: Names, works: bool) -> Verdict:
    """A rank that waits in these frames for three minutes, and its child, which works or sleeps below these."""
    history, until = job(1, trained=False), STOPPED + 180.0
    history.add(STOPPED, process(CHILD, FIRST, "python train.py"))
    stands(history, FIRST, (*below(folder, rank), *LIBRARY_FRAMES_MAIN), LIBRARY_FRAMES_FOR_EVER, until)
    forked = (*below(folder, (*child, ("_bootstrap", "process.py"), ("start", "process.py"))), *LIBRARY_FRAMES_MAIN)
    if works:
        runs(history, CHILD, tuple((Frame("work", TRAIN, line), *forked) for line in (26, 27)), STOPPED, until)
    else:
        stands(history, CHILD, forked, LIBRARY_FRAMES_FOR_EVER, until)
    uses(history, CHILD, 0.95 if works else 0.0, 0.0, until)
    uses(history, FIRST, 0.0, 0.0, until)
    return judged(history, until)


@pytest.mark.parametrize(
    ("rank", "child", "works", "said"),
    [
        ((("next", "pool.py"),), (("worker", "pool.py"),), True, ("busy", "waiting_on_work", "work (train.py:27)")),
        ((("next", "pool.py"),), (("worker", "pool.py"),), False, ("hung", "stuck_worker", "worker (pool.py:1)")),
        # An idle worker: the task was lost.
        ((("next", "pool.py"),), (("get", "queues.py"), ("worker", "pool.py")), False,
         ("hung", "dead_worker", "main (train.py:9)")),
        ((("join", "process.py"),), (("run", "process.py"),), True, ("busy", "waiting_on_work", "work (train.py:27)")),
        ((("join", "process.py"),), (("run", "process.py"),), False, ("hung", "blocked_child", "run (process.py:1)")),
    ],
    ids=["pool works", "pool rests", "pool is idle", "child works", "child rests"],
)  # fmt: skip
def test_the_copy_of_multiprocessing_that_datasets_forks_with_is_read_as_the_original(
    rank: Names, child: Names, works: bool, said: tuple[str, str, str]
) -> None:
    """dill's ``multiprocess``. Another package of the same function names is only a wait in native code or for a lock."""
    original, copy, other = (waits(folder, rank, child, works) for folder in (ORIGINAL, COPY, OTHER))

    assert (original.state, original.cause, original.culprits[0].frame) == said
    assert (copy.state, copy.cause, copy.culprits[0].frame, copy.summary) == (
        original.state,
        original.cause,
        original.culprits[0].frame,
        original.summary,
    )
    assert other.summary != original.summary
    assert other.cause == ("waiting_on_work" if works else "deadlocked_locks")


@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("ssl.py", "read"),
        ("gc.py", "collect"),
        ("profile.py", "runcall"),
        ("queue.py", "get"),
        ("selectors.py", "select"),
        ("subprocess.py", "wait"),
        ("traceback.py", "format_exc"),
        ("socket.py", "recv_into"),
        ("cmd.py", "cmdloop"),
        ("logging/__init__.py", "emit"),
    ],
)
def test_a_file_of_the_program_is_not_taken_for_the_library_of_that_name(file: str, function: str) -> None:
    """Self-supervised learning lies in an ``ssl.py``, a graph convolution in a ``gc.py``: the line is the program's own."""
    at_work, at_rest = (
        Training(card=False)
        .goes_on(80.0, [own, own, own, *others], run_share=share, wait=wait, owns_gil=True)
        .verdict()
        for own in [(Frame(function, f"/home/me/models/{file}", 9), *FORWARD[1:])]
        for others, share, wait in (([FORWARD, LIBRARY_FRAMES_BACKWARD, OPTIMIZER], 1.0, None), ([], 0.0, SLEEP))
    )
    frame = f"{function} ({file.split('/')[-1]}:9)"

    assert (at_work.state, at_work.cause) == ("slow", "serial_loading")
    assert frame in at_work.summary
    assert (at_rest.state, at_rest.cause, at_rest.culprits[0].frame) == ("hung", "deadlocked_locks", frame)
