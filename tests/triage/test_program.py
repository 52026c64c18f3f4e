"""A program that was installed as a package is judged as any other: its lines are its own, not a library's."""

import os
from pathlib import Path

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.triage.words.frames import is_user, package_of, show, user_frame
from perfwatch_probes.readings import Frame, GpuBinding, Process, SourceLine, Stack, Thread
from tests.sessions import session

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
    seen = stored((*BACKWARD, FIT, *outer))
    own = user_frame(seen)
    assert own is not None
    assert show(own) == "fit (loop.py:40)"
    assert is_user(own)
    assert package_of(own) is None
    assert not any(map(is_user, seen.frames[:2])), "torch stays a library"


@pytest.mark.parametrize("parser", ["click/core.py", "typer/main.py", "fire/core.py"])
def test_who_reads_the_command_line_is_not_the_program(parser: str) -> None:
    """An entry point that is a command of click's, typer's or fire's: the program is what they call."""
    command = (Frame("invoke", f"{PACKAGES}/{parser}", 783), Frame("inner", f"{STANDARD}/contextlib.py", 79))
    entry = (Frame("main", f"{PACKAGES}/tuner/cli/__init__.py", 7), *command, *command, ENTRY[-1])
    seen = stored((*BACKWARD, FIT, *entry))
    assert show(user_frame(seen)) == "fit (loop.py:40)"
    assert not any(is_user(frame) for frame in seen.frames if parser in frame.file)


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
    history.add(3.0, Stack(pid=launcher, tid=launcher, frames=starts))
    seen = [one.reading for pid in (launcher, rank) for one in history.series(Stack, pid, pid)]
    assert not any(is_user(frame) for one in seen for frame in one.frames if "-packages/" in frame.file)
    assert show(user_frame(seen[-1])) == "<module> (train.py:12)", "of the rank's last stack"


def test_what_was_read_before_it_was_known_is_seen_alike() -> None:
    """The first look may meet an import, and source may be read before the program is known."""
    history = History(at=3.0)
    history.add(0.0, Stack(pid=PID, tid=PID, frames=(FIT, MODULE, *RUNPY)))
    history.add(0.5, SourceLine(file=FIT.file, line=FIT.line, text="value.item()", calls=("value.item",)))
    history.add(1.0, Stack(pid=PID, tid=PID, frames=(*BACKWARD, FIT, MODULE, *RUNPY)))
    history.add(2.0, Stack(pid=PID, tid=PID, frames=(FIT, MODULE, *RUNPY)))
    first, _, last = (seen.reading for seen in history.series(Stack, PID, PID))
    assert first.frames == last.frames
    assert is_user(first.frames[0])
    line = history.latest(SourceLine, first.frames[0].file, first.frames[0].line)
    assert line is not None
    assert line.reading.calls == ("value.item",)
    assert history.entities(Stack) == [(PID, PID)]
    assert history.of(Stack, PID) == [(PID, PID)]


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
    seen = stored((*BACKWARD, *outer))
    assert [is_user(frame) for frame in seen.frames if "-packages/" in frame.file].count(True) == 0


def test_a_program_that_is_never_seen_in_torch_is_known_by_its_process() -> None:
    """A long stretch of plain Python shows no frame of torch; that the process has loaded it does."""
    history = History(at=2.0)
    history.add(0.0, Process(pid=PID, start_ticks=9, parent_pid=1, name="python", command=("python", "-m", "tuner"),
                             python=True, torch_loaded=True))  # fmt: skip
    history.add(1.0, Stack(pid=PID, tid=PID, frames=(FIT, MODULE, *RUNPY)))
    seen = history.latest(Stack, PID, PID)
    assert seen is not None
    assert is_user(seen.reading.frames[0])


def test_other_threads_and_programs_without_torch_tell_nothing() -> None:
    """A service of a library in the job is started with that library's package, and never calls torch."""
    served = stored(
        (Frame("serve", f"{PACKAGES}/keeper/service.py", 3), Frame("<module>", f"{PACKAGES}/keeper/s.py", 1))
    )
    beside = stored((*BACKWARD, FIT, MODULE, *RUNPY), tid=PID + 1)
    assert not any(map(is_user, (*served.frames, *beside.frames)))


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
