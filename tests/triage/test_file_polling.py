"""Files: which one a loop polls for, since when, and what a thread in state D reads."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.history import History
from perfwatch.verdict import Level, Verdict
from perfwatch_probes.readings import (
    APPEARS,
    GOES,
    Descriptor,
    FileGrowth,
    Frame,
    Process,
    Reading,
    SourceLine,
    Stack,
    Steps,
    Thread,
    Wait,
)
from tests.recorded import RECORDINGS, load_case
from tests.training import level
from tests.triage.rank_looks import (
    BARRIER,
    FIRST,
    FOR_EVER,
    LIB,
    MODULE,
    STEP,
    STOPPED,
    TORCH,
    TRAIN,
    Frames,
    job,
    judged,
    looks,
    process,
    runs,
    stands,
    uses,
)

# Polling for a file: which file it is, named by the variables around the wait, and since when it stays.


NAP = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=0.5)


PATH = "/data/build.lock"
WAITS: Frames = (Frame("guarded", TRAIN, 18), MODULE)
BEGAN, SEEN_FOR = 20.0, 6.0


SOUGHT = -2  # in place of a descriptor: what was found out about the path itself


@pytest.mark.parametrize(
    ("texts", "path"),
    [
        (("/runs/a", "/runs/a/best.pt"), "/runs/a/best.pt"),
        (("/runs/a/best.pt", "/runs/a/"), "/runs/a/best.pt"),
        (("/runs/a", "/runs/a2/best.pt"), None),
        (("fold", "best.pt"), "best.pt"),
        (("fold",), None),
    ],
)
def test_beside_the_path_of_a_file_its_folder_is_not_what_is_waited_for(
    texts: tuple[str, ...], path: str | None
) -> None:
    """The folder is there, and is often in a variable of its own. Of two files it is not known which it is."""
    history, end = job(1, trained=False), BEGAN + 66.0
    runs(history, FIRST, (WAITS,), BEGAN, end, share=0.001, wait=NAP, switches_per_second=2.0)
    uses(history, FIRST, 0.001, 0.0, end, BEGAN)
    history.add(BEGAN, SourceLine(file=TRAIN, line=18, text="time.sleep(0.5)", calls=("time.sleep",), awaits=APPEARS,
                                  loop_calls=("os.path.exists", "time.sleep"), loops=("while",)))  # fmt: skip
    history.add(end - 0.2, Stack(pid=FIRST, tid=FIRST, frames=WAITS, texts=texts))
    verdict = judged(history, end)

    assert (verdict.state, verdict.cause) == ("hung", "waiting_for_file")
    assert verdict.summary.endswith(
        f"waits for {path} to appear" if path else f"waits for a file to appear; in its variables: {', '.join(texts)}"
    )


def looks_for_it(awaits: str, changed_ago_seconds: float | None, variable: str = "lock") -> Verdict:
    """What is said after six seconds of a rank that looks for the file ``lock``.

    changed_ago_seconds: of the path in ``variable``; None where it is not there.
    """
    history, end = job(1, trained=False), BEGAN + SEEN_FOR
    runs(history, FIRST, (WAITS,), BEGAN, end, share=0.001, wait=NAP, switches_per_second=2.0)
    uses(history, FIRST, 0.001, 0.0, end, BEGAN)
    history.add(BEGAN, SourceLine(file=TRAIN, line=18, text="time.sleep(0.5)", calls=("time.sleep",), awaits=awaits, tested_names=("lock",),
                                  loop_calls=("os.path.exists", "time.sleep"), loops=("while",)))  # fmt: skip
    history.add(end - 0.2, Stack(pid=FIRST, tid=FIRST, frames=WAITS, texts=(PATH,), text_names=(variable,)))
    kind = "missing" if changed_ago_seconds is None else "file"
    history.add(end, Descriptor(pid=FIRST, fd=SOUGHT, kind=kind, target=PATH, changed_ago_seconds=changed_ago_seconds))
    return judged(history, end)


@pytest.mark.parametrize(
    ("awaits", "changed_ago_seconds", "state", "said"),
    [
        (GOES, 3000.0, "hung", f"{PATH} to be removed"),
        ("", 3000.0, "hung", f"{PATH} to change or to be removed"),
        (GOES, 20.0, "inconclusive", f"{PATH} to be removed"),
        (APPEARS, None, "inconclusive", f"{PATH} to appear"),
        (APPEARS, 3000.0, "inconclusive", f"a file to appear; in its variables: {PATH}"),
    ],
    ids=["stale", "unchanged", "young", "missing", "another_file"],
)
def test_a_file_that_is_there_tells_since_when_it_stays(
    awaits: str, changed_ago_seconds: float | None, state: str, said: str
) -> None:
    """One that is to appear and is there is not the one that is looked for."""
    verdict = looks_for_it(awaits, changed_ago_seconds)

    assert verdict.state == state
    assert verdict.summary.endswith(f"waits for {said}")
    assert level(verdict.confidence) != "certain"


def test_a_path_in_a_variable_that_the_loop_does_not_test_is_not_what_it_waits_for() -> None:
    """However old that file is: it is near it, perhaps."""
    verdict = looks_for_it(GOES, 3000.0, variable="table")

    assert verdict.state == "inconclusive"
    assert verdict.summary.endswith(f"waits for a file to be removed; in its variables: {PATH}")


def test_what_is_to_be_typed_is_quoted() -> None:
    """A file's name is not ours."""
    history, end, name = job(1, trained=False), BEGAN + 66.0, "/data/a b;$(reboot)"
    runs(history, FIRST, (WAITS,), BEGAN, end, share=0.001, wait=NAP, switches_per_second=2.0)
    uses(history, FIRST, 0.001, 0.0, end, BEGAN)
    history.add(BEGAN, SourceLine(file=TRAIN, line=18, text="time.sleep(0.5)", calls=("time.sleep",), tested_names=("lock",),
                                  loop_calls=("os.path.exists", "time.sleep"), loops=("while",)))  # fmt: skip
    history.add(end - 0.2, Stack(pid=FIRST, tid=FIRST, frames=WAITS, texts=(name,), text_names=("lock",)))

    assert judged(history, end).next == (f"ls -l '{name}'; fuser -v '{name}'",)


def test_what_a_lock_guards_is_not_reported_as_the_lock() -> None:
    """Its own file is named after that in the lock itself, which no variable of the caller shows; what is beside it is to be looked at."""
    history = job(1, trained=False)
    takes = (Frame("__enter__", "/app/cache.py", 18), Frame("read", TRAIN, 40), MODULE)
    runs(history, FIRST, (takes,), 20.0, 90.0, share=0.001, wait=NAP, switches_per_second=2.0)
    uses(history, FIRST, 0.001, 0.0, 90.0, 20.0)
    history.add(20.0, SourceLine(file="/app/cache.py", line=18, text="time.sleep(0.5)", calls=("time.sleep",),
                                 loop_calls=("os.open", "time.sleep"), loops=("while",)))  # fmt: skip
    history.add(89.9, Stack(pid=FIRST, tid=FIRST, frames=takes, texts=("/data/aug", "/data/aug/epoch3.bin")))
    verdict = judged(history, 90.0)

    assert (verdict.state, verdict.cause) == ("hung", "waiting_for_file")
    assert verdict.summary.endswith("waits for a lock file to be released; in its variables: /data/aug/epoch3.bin")
    assert verdict.next == ("ls -l /data/aug/epoch3.bin*",)


@pytest.mark.parametrize(
    ("line", "loop_calls", "state"),
    [
        (17, ("os.path.exists", "time.sleep"), "hung"),
        (17, ("os.path.exists", "time.sleep", "net"), "inconclusive"),
        (25, ("os.path.exists", "time.sleep"), "inconclusive"),
    ],
    ids=["looks", "works", "outside"],
)
def test_who_is_met_in_the_midst_of_a_look_has_not_gone_on(line: int, loop_calls: tuple[str, ...], state: str) -> None:
    """Once in a while a sample falls on the look itself; beside a loop that does more, or outside of it, that is a move."""
    history, end = job(1, trained=False), BEGAN + 66.0
    runs(history, FIRST, (WAITS,), BEGAN, BEGAN + 15.0, share=0.001, wait=NAP, switches_per_second=2.0)
    there = (Frame("guarded", TRAIN, line), MODULE)
    history.add(BEGAN + 15.1, Stack(pid=FIRST, tid=FIRST, frames=there, samples=1, span_seconds=0.003))
    runs(history, FIRST, (WAITS,), BEGAN + 15.2, end, share=0.001, wait=NAP, switches_per_second=2.0)
    uses(history, FIRST, 0.001, 0.0, end, BEGAN)
    history.add(BEGAN, SourceLine(file=TRAIN, line=18, text="time.sleep(0.5)", calls=("time.sleep",), awaits=APPEARS,
                                  loop_calls=loop_calls, loops=("while",), loop_lines=(17, 18)))  # fmt: skip

    assert judged(history, end).state == state


PARSES = (Frame("load", "/usr/lib/python3.11/json/__init__.py", 293), Frame("await_shard", TRAIN, 30), MODULE)
SLEEPS = (Frame("await_shard", TRAIN, 33), MODULE)


@pytest.mark.parametrize(
    ("calls", "seconds", "state"),
    [
        (("open", "json.load", "time.sleep"), 20.0, "inconclusive"),
        (("open", "json.load", "time.sleep"), 66.0, "hung"),
        (("open", "json.load", "time.sleep", "rows.append"), 66.0, "inconclusive"),  # it gathers something
    ],
)
def test_a_loop_that_reads_a_file_anew_in_each_turn_polls_it_however_long_it_parses(
    calls: tuple[str, ...], seconds: float, state: str
) -> None:
    """What it reads is the same each time, and its CPU time is no work; it is suspected at once, in a sleep as in a parse."""
    history, end = job(1, trained=False), BEGAN + seconds
    for line, called in ((30, ("open", "json.load")), (33, ("time.sleep",))):
        history.add(BEGAN, SourceLine(file=TRAIN, line=line, text="", calls=called, loop_calls=calls, loops=("while",)))
    runs(history, FIRST, (PARSES, SLEEPS), BEGAN, end, share=0.4, wait=NAP, calls_per_second=4.0)
    verdict = judged(history, end)

    suspected = verdict.suspect is not None and verdict.suspect.cause == "endless_python"
    assert verdict.state == state
    assert suspected is (state == "inconclusive" and "rows.append" not in calls)


@pytest.mark.parametrize(
    ("trained", "paused", "waited", "state"),
    [
        (540, 0.25, 17.0, "inconclusive"),
        (540, 0.25, 22.0, "hung"),
        (300, 0.25, 22.0, "inconclusive"),
        (540, 4.0, 22.0, "inconclusive"),
        (540, 4.0, 62.0, "hung"),
    ],
    ids=["not_yet", "overdue", "trained_for_less", "it_paused_before", "the_hang_timeout"],
)
def test_a_run_whose_steps_were_regular_for_long_is_given_less_time(
    trained: int, paused: float, waited: float, state: str
) -> None:
    """Steps of a quarter of a second for nine minutes, then a loop that polls for a flag file. One pause of 4 s is enough doubt."""
    history, stopped = job(1, trained=False), BEGAN + trained
    for second in range(int(BEGAN), int(stopped + waited)):
        count = min(second, int(stopped)) * 4
        ago, longest = max(0.0, second - stopped), paused if second == 200 else 0.25
        history.add(float(second), Steps(pid=FIRST, tid=FIRST, count=count, step_ago_seconds=ago,
                                         interval_seconds=(0.25, 0.25, 0.25, longest) if not ago else ()))  # fmt: skip
    runs(history, FIRST, STEP, stopped - 20.0, stopped)
    runs(history, FIRST, (WAITS,), stopped, stopped + waited, share=0.001, wait=NAP, switches_per_second=2.0)
    uses(history, FIRST, 0.001, 0.0, stopped + waited, stopped - 20.0)
    history.add(stopped, SourceLine(file=TRAIN, line=18, text="time.sleep(0.5)", calls=("time.sleep",), awaits=APPEARS,
                                    loop_calls=("os.path.exists", "time.sleep"), loops=("while",)))  # fmt: skip

    assert judged(history, stopped + waited).state == state


# Ranks that look for a lock file again and again: whether one of them hangs depends on what the others do meanwhile.


BUILDS_UNDER_A_LOCK = RECORDINGS / "waiting_on_work" / "fires" / "rank_that_builds_under_a_lock_file"
TAKES = (Frame("acquire", LIB + "site-packages/filelock/_api.py", 300), Frame("prepare", TRAIN, 30), MODULE)
CORE = LIB + "site-packages/filelock/_core/_acquire.py"  # since filelock 4
TAKES_BY_PARTS = (Frame("_poll_until_acquired", CORE, 177), Frame("acquire", CORE, 90), *TAKES[1:])
BUILDS: tuple[Frames, ...] = tuple((Frame("build", TRAIN, 40 + line), MODULE) for line in range(3))
STARTS = (Frame("wait", LIB + "subprocess.py", 1264), Frame("compile_ops", TRAIN, 50), MODULE)
CHILD, UNTIL = 300, STOPPED + 90.0
LOCK_FILE_NAP = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=0.05)
BUILDER = Wait(call="wait4", number=61, kind="child", child_pid=CHILD, forever=True)


def said_of_a_lock_file(history: History, pid: int, takes: Frames = TAKES, share: float = 0.004) -> None:
    """FileLock's own loop, which tries 20 times a second."""
    runs(history, pid, (takes,), STOPPED, UNTIL, share=share, wait=LOCK_FILE_NAP)
    uses(history, pid, 0.004, 0.0, UNTIL)


def builds_itself(history: History) -> None:
    """Python of the first rank's own."""
    runs(history, FIRST, BUILDS, STOPPED, UNTIL, calls_per_second=100)
    uses(history, FIRST, 0.95, 4e6, UNTIL)


def lets_a_child_build(history: History) -> None:
    """The first rank waits for a compiler."""
    history.add(STOPPED, process(CHILD, FIRST, "cc1plus -O3"))
    stands(history, FIRST, STARTS, BUILDER, UNTIL)
    runs(history, CHILD, (), STOPPED, UNTIL)
    uses(history, CHILD, 0.95, 1e4, UNTIL)


def verdict_of(history: History) -> Verdict:
    """Well beyond the patience."""
    return judged(history, UNTIL)


@pytest.mark.parametrize("takes", [TAKES, TAKES_BY_PARTS], ids=["filelock 3", "filelock 4"])
@pytest.mark.parametrize(("works", "worker"), [(builds_itself, FIRST), (lets_a_child_build, CHILD)])
def test_who_waits_for_a_lock_file_is_no_hang_while_another_rank_works(
    works: Callable[[History], None], worker: int, takes: Frames
) -> None:
    """It downloads, builds or computes, or what it has started does: the lock is let go after that."""
    history = job(3, trained=False)
    works(history)
    for rank in (1, 2):
        said_of_a_lock_file(history, FIRST + rank, takes)

    verdict = verdict_of(history)

    assert verdict.state != "hung"
    assert "waiting_for_file" not in {one.cause for one in verdict.findings}
    assert worker in {culprit.worker_pid or culprit.pid for culprit in verdict.culprits}


def test_a_rank_that_waits_for_another_ones_lock_file_is_not_even_suspected() -> None:
    """Recorded: the first rank lets a child compress a corpus under a FileLock, for which the other one waits."""
    verdict = diagnose(load_case(BUILDS_UNDER_A_LOCK), expected_of(BUILDS_UNDER_A_LOCK).at)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
    assert verdict.findings == ()


@pytest.mark.parametrize(("takes", "share"), [(TAKES, 0.004), (TAKES_BY_PARTS, 0.004), (TAKES_BY_PARTS, 0.011)])
def test_ranks_that_all_look_for_a_lock_file_wait_for_one_that_was_left_behind(takes: Frames, share: float) -> None:
    """No process of the job holds it; one outside of the job may. A try that reads the owner from the file takes half a millisecond."""
    history = job(3, trained=False)
    for rank in range(3):
        said_of_a_lock_file(history, FIRST + rank, takes, share)

    verdict = verdict_of(history)

    assert (verdict.state, verdict.cause) == ("hung", "waiting_for_file")
    assert verdict.confidence == Level.MEDIUM


def test_who_does_more_between_two_tries_for_a_lock_file_goes_on() -> None:
    """Ten milliseconds for each: it gets the lock, and works under it."""
    history = job(1, trained=False)
    said_of_a_lock_file(history, FIRST, TAKES_BY_PARTS, share=0.2)

    assert verdict_of(history).state != "hung"


def test_beside_a_rank_that_is_elsewhere_it_is_not_sure_whose_fault_the_lock_file_is() -> None:
    """That one may hold it, though it does nothing."""
    history = job(2, trained=False)
    stands(history, FIRST, BARRIER, FOR_EVER, UNTIL)
    said_of_a_lock_file(history, FIRST + 1)

    found = {one.cause: one for one in verdict_of(history).findings}

    assert found["waiting_for_file"].confidence <= Level.MEDIUM


ROUND_SECONDS, WORK_SECONDS = 360.0, 60.0
POLLS = (Frame("wait_for", TRAIN, 30), MODULE)
TESTS_FOR_IT = SourceLine(
    file=TRAIN, line=30, text="time.sleep(1)", calls=("time.sleep",), loop_calls=("os.path.exists",), loops=("while",)
)
EVALUATES: tuple[Frames, ...] = tuple(
    (Frame("forward", TORCH + "nn/modules/linear.py", 125), Frame("evaluate", TRAIN, 40 + line), MODULE)
    for line in range(3)
)


def takes_turns(rounds: int, work: tuple[Frames, ...], pause_seconds: float) -> History:
    """A minute of work, and five in which it looks for a file; with no work only that."""
    history = History()
    history.add(0.0, process(FIRST, 1, "python follow.py"))
    history.add(1.0, TESTS_FOR_IT)
    for number in range(rounds):
        began = number * ROUND_SECONDS
        waits = began + (WORK_SECONDS if work else 0.0)
        runs(history, FIRST, work, began, waits)
        nap = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=pause_seconds)
        runs(history, FIRST, (POLLS,), waits, began + ROUND_SECONDS, share=0.0003, wait=nap)
    return history


@pytest.mark.parametrize(
    ("history", "state"),
    [
        (takes_turns(1, EVALUATES, 1.0), "inconclusive"),  # the next checkpoint
        (takes_turns(2, EVALUATES, 1.0), "inconclusive"),
        (takes_turns(1, (), 10.0), "inconclusive"),  # before the first one
        (takes_turns(2, STEP, 1.0), "inconclusive"),  # rollouts of another job: they came before
        (takes_turns(1, STEP, 1.0), "hung"),
        (takes_turns(1, (), 1.0), "hung"),  # a flag of its own job, or a lock
    ],
)
def test_who_takes_what_another_job_brings_is_not_hung_between_two_files(history: History, state: str) -> None:
    """A file that never came before, to a job that trains or asks all the time, is missed."""
    verdict = judged(history, max(one.at for one in history.series(Thread, FIRST, FIRST)))

    assert verdict.state == state


def test_a_deadline_that_was_read_half_is_no_long_sleep() -> None:
    """The program was writing it at that moment: recorded once in a minute of naps of a tenth of a second, as 141 days."""
    history = takes_turns(1, (), 0.1)
    torn = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=12_215_313.8)
    looks = history.series(Thread, FIRST, FIRST)
    history.add(looks[80].at + 0.1, msgspec.structs.replace(looks[80].reading, wait=torn))

    verdict = judged(history, looks[-1].at)

    assert (verdict.state, verdict.cause) == ("hung", "waiting_for_file")


# A thread in state D waits for a file only where a file, a call on one or a function of the kernel's for one was seen.


CASE = RECORDINGS / "blocked_storage" / "lookalike" / "child_made_by_vfork"
PARENT = load_case(CASE).session.root_pids[0]


def judged_in_state_d(wchan: str, call: str, kind: str = "other") -> Verdict:
    """The recorded thread in state D, without its child and somewhere else in the kernel."""
    recording, at = load_case(CASE), expected_of(CASE).at
    records = [one for one in recording.records if not _is_child(one.reading)]

    def elsewhere(reading: Reading) -> Reading:
        if not isinstance(reading, Thread) or reading.tid != PARENT or reading.wait is None:
            return reading
        wait = msgspec.structs.replace(reading.wait, call=call, kind=kind)
        return msgspec.structs.replace(reading, wchan=wchan, wait=wait)

    told = tuple(msgspec.structs.replace(one, reading=elsewhere(one.reading)) for one in records)
    return diagnose(replace(recording, records=told), at)


def test_who_made_a_child_waits_for_it_and_for_no_file() -> None:
    """Until the child has become a program of its own its parent is in state D."""
    recording = load_case(CASE)
    child = next(r.pid for one in recording.records if isinstance(r := one.reading, Process) and _is_child(r))
    verdict = diagnose(recording, expected_of(CASE).at)

    assert verdict.cause == "blocked_child"
    assert f"waits for child {child} " in verdict.summary


@pytest.mark.parametrize(("wchan", "call"), [("kernel_clone", "vfork"), ("rwsem_down_write_slowpath", "mmap")])
def test_what_was_not_seen_to_be_storage_is_suspected_at_most(wchan: str, call: str) -> None:
    """No child to follow, no file."""
    verdict = judged_in_state_d(wchan, call)

    assert (verdict.state, verdict.cause) == ("inconclusive", None)
    assert verdict.suspect is not None
    assert f"blocked in {call}, for the kernel ({wchan})" in verdict.summary


@pytest.mark.parametrize(
    ("wchan", "call", "kind"),
    [
        ("request_wait_answer", "page_fault", "page_fault"),
        ("nfs_wait_bit_killable", "mmap", "other"),
        ("rpc_wait_bit_killable", "mmap", "other"),
        ("nvme_submit_sync_cmd", "other", "other"),
        ("0", "execve", "other"),
    ],
)
def test_a_call_or_a_function_for_files_tells_storage(wchan: str, call: str, kind: str) -> None:
    """A mapped file, functions of NFS and of a disk that begin like the GPU driver's, a program that is read."""
    assert judged_in_state_d(wchan, call, kind).cause == "blocked_storage"


def _is_child(reading: Reading) -> bool:
    return isinstance(reading, Process) and reading.parent_pid == PARENT


# A log that was written regularly and is not any more tells since when a rank does nothing; one that was not tells nothing.


SILENT_LOGS_POLLS: Frames = (Frame("wait_for_teacher", TRAIN, 24), MODULE)
SILENT_LOGS_BEGAN, SILENT_LOGS_SEEN_FOR = 150.0, 6.0
LOG: dict[str, Any] = {
    "fd": 1,
    "path": "/runs/train.log",
    "size_bytes": 9000,
    "modified_ago_seconds": 100.0,
    "alike_lines": 200,
}


def polls(*files: dict[str, Any], calls: int = 210, writes: int = 0, ran: float = 40.0) -> Verdict:
    """What is said after six seconds of a rank that sleeps and looks for a file, of which it is known what it writes.

    calls: to write, that its training thread has made. writes: and makes at each look. ran: seconds of CPU time, until then.
    """
    history: History = job(1, trained=False)
    end = SILENT_LOGS_BEGAN + SILENT_LOGS_SEEN_FOR
    for turn, at in enumerate(looks(SILENT_LOGS_BEGAN, end)):
        history.add(at, Thread(pid=FIRST, tid=FIRST, name="python", state="S", cpu_seconds=ran, run_seconds=ran + turn / 1000,
                               wait=NAP, voluntary_switches=turn, ran_ago_seconds=0.01, write_calls=calls + writes * turn))  # fmt: skip
        history.add(at, Stack(pid=FIRST, tid=FIRST, frames=SILENT_LOGS_POLLS, samples=10, span_seconds=0.5))
    uses(history, FIRST, 0.001, 0.0, end, SILENT_LOGS_BEGAN)
    history.add(SILENT_LOGS_BEGAN, SourceLine(file=TRAIN, line=24, text="time.sleep(0.5)", calls=("time.sleep",),
                                  loop_calls=("os.path.exists", "time.sleep"), loops=("while",)))  # fmt: skip
    for file in files:
        history.add(SILENT_LOGS_BEGAN + 1.0, FileGrowth(pid=FIRST, **file))
    return judged(history, end)


def test_a_poll_of_a_rank_whose_log_fell_silent_long_ago_has_lasted_as_long() -> None:
    """After some seconds of watching, and without certainty."""
    verdict = polls(LOG)

    assert (verdict.state, verdict.cause, verdict.confidence) == ("hung", "waiting_for_file", 0.65)
    assert verdict.silent_seconds == 105.0
    assert ("log", "last written 1 min 45 s ago", "200 lines alike over 52 s") in [
        (one.witness, one.observed, one.expected) for one in verdict.evidence
    ]


@pytest.mark.parametrize(
    "changed",
    [
        {"alike_lines": None},
        {"alike_lines": 7},
        {"alike_lines": 4000, "modified_ago_seconds": 142.0},
        {"alike_lines": 21, "modified_ago_seconds": 70.0},
    ],
    ids=["irregular", "few", "of_the_start", "seldom"],
)
def test_a_log_that_was_not_written_often_may_be_silent_for_long(changed: dict[str, Any]) -> None:
    """Irregular, a few lines, all of them while the program started, or one each four seconds and silent for less than twenty times."""
    assert polls({**LOG, **changed}).state == "inconclusive"


def test_lines_that_an_earlier_run_left_in_the_log_do_not_count() -> None:
    """This one has made a few calls to write."""
    assert polls(LOG, calls=4).state == "inconclusive"


def test_a_rank_that_writes_another_file_is_not_silent() -> None:
    """Its events, or a checkpoint."""
    events = {"fd": 7, "path": "/runs/events.out", "size_bytes": 77, "modified_ago_seconds": 2.0}

    assert polls(LOG, events).state == "inconclusive"


def test_a_rank_that_writes_to_a_terminal_meanwhile_is_not_silent() -> None:
    """Or to a pipe, or to files that it closes again: its calls tell."""
    assert polls(LOG, writes=1).state == "inconclusive"


def test_who_computed_for_longer_than_the_log_was_written_went_on_without_a_word() -> None:
    """The lines were about its start."""
    assert polls(LOG, ran=90.0).state == "inconclusive"


def test_without_files_the_patience_is_waited_out() -> None:
    """As before."""
    assert polls().state == "inconclusive"
