"""Which of several findings is the verdict, and how sure it is."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec
import pytest

from perfwatch.gauntlet.recorded import cases, expected_of
from perfwatch.recording.recording import Record, Recording
from perfwatch.recording.session import Machine, Session
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose, judge
from perfwatch.triage.history import History
from perfwatch.triage.rule import Rule
from perfwatch.triage.rules import RULES
from perfwatch.verdict import Culprit, Finding, Level, Verdict
from perfwatch_probes import readings as r
from perfwatch_probes.readings import (
    Cgroup,
    Frame,
    HostShare,
    KernelShare,
    Process,
    ProcessUsage,
    Reading,
    SourceLine,
    Stack,
    SyncPoint,
    Thread,
    TorchTrace,
    Wait,
)
from tests.recorded import RECORDINGS, load_case
from tests.sessions import session
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, Training, level, level_in
from tests.training import TRAIN as CERTAINTY_TRAIN
from tests.triage.retold import retold

# Which of several findings is the verdict: every rank is looked at, the sure come before the doubtful, and costs decide.


T = TypeVar("T")
TRAIN, THREADS = "/app/train.py", "/usr/lib/python3.11/threading.py"
MODULE = Frame("<module>", TRAIN, 50)
NAP = (Frame("watch", TRAIN, 70), MODULE)
TURNS = ((Frame("spin", TRAIN, 80), MODULE), (Frame("spin", TRAIN, 81), MODULE))
TAKE = (Frame("take", TRAIN, 20), MODULE)
GIVE = (Frame("give", TRAIN, 44), Frame("run", THREADS, 1012), Frame("_bootstrap", THREADS, 1032))
SLEEP = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=0.5)
LOCK = Wait(call="futex", number=202, kind="futex", forever=True)
SECONDS, LOOK_SECONDS = 300, 0.5
STEPS = [FORWARD, BACKWARD, OPTIMIZER]
NOTED = "low"  # a finding beside the verdict


def two_ranks(history: History | None = None) -> History:
    """Of one torchrun, on one host."""
    history = History() if history is None else history
    for rank in (0, 1):
        history.add(0.0, Process(pid=200 + rank, start_ticks=9, parent_pid=1, name="python", command=("python", "train.py"),
                                 python=True, torch_loaded=True, rank=rank, world_size=2))  # fmt: skip
    return history


def naps(history: History, pid: int) -> None:
    """At one line, again and again: of several ranks nothing is said of that."""
    for look in range(int(SECONDS / LOOK_SECONDS)):
        at = 100.0 + look * LOOK_SECONDS
        history.add(at, Thread(pid=pid, tid=pid, name="python", state="S", cpu_seconds=5.0, run_seconds=5.0 + look * 0.0002,
                               voluntary_switches=50 + look, ran_ago_seconds=0.2, wait=SLEEP))  # fmt: skip
        history.add(at, Stack(pid=pid, tid=pid, frames=NAP, samples=10, span_seconds=LOOK_SECONDS))


def turns(history: History, pid: int) -> None:
    """A loop without an end."""
    loops, asks = ("while",), ("check",)
    history.add(1.0, SourceLine(file=TRAIN, line=80, text="while not ready:", loops=loops, loop_calls=asks))
    history.add(
        1.0, SourceLine(file=TRAIN, line=81, text="    ready = check()", calls=asks, loops=loops, loop_calls=asks)
    )
    for look in range(int(SECONDS / LOOK_SECONDS)):
        at = 100.0 + look * LOOK_SECONDS
        history.add(at, Thread(pid=pid, tid=pid, name="python", state="R", cpu_seconds=5.0 + look * LOOK_SECONDS,
                               run_seconds=5.0 + look * LOOK_SECONDS, voluntary_switches=50, read_calls=1, write_calls=1))  # fmt: skip
        history.add(at, Stack(pid=pid, tid=pid, frames=TURNS[look % 2], samples=10, span_seconds=LOOK_SECONDS))


def deadlocked(history: History, pid: int, stacks: bool = True, kernel: bool = True) -> None:
    """Two threads that wait for each other: their stacks could be read or not, and what the kernel remembers of them."""
    for at in range(100, 400):
        for tid, frames in ((pid, TAKE), (pid + 100, GIVE)):
            known = Thread(pid=pid, tid=tid, name="python", state="S", cpu_seconds=5.0, run_seconds=5.0,
                           voluntary_switches=50, ran_ago_seconds=at - 90.0, wait=LOCK)  # fmt: skip
            history.add(at, known if kernel else Thread(pid=pid, tid=tid, name="python", state="S", cpu_seconds=5.0))
            if stacks:
                history.add(at, Stack(pid=pid, tid=tid, frames=frames, samples=20, span_seconds=1.0))


def judged(history: History) -> Verdict:
    """After minutes."""
    history.at = 399.5
    return judge(Case(history, session(root_pids=(200, 201))))


@pytest.mark.parametrize("turning", [0, 1])
def test_a_rank_that_turns_without_end_is_reported_whichever_number_it_has(turning: int) -> None:
    """The other one sleeps a little, again and again."""
    history = two_ranks()
    naps(history, 201 - turning)
    turns(history, 200 + turning)

    verdict = judged(history)

    assert (verdict.state, verdict.cause) == ("hung", "endless_python")
    assert [culprit.rank for culprit in verdict.culprits] == [turning]


@pytest.mark.parametrize("other", [{"stacks": False}, {"kernel": False}], ids=["no stacks", "stacks alone"])
@pytest.mark.parametrize("unseen", [0, 1])
def test_a_deadlock_that_is_sure_is_reported_before_a_doubtful_one(unseen: int, other: dict[str, bool]) -> None:
    """Of the other rank the stacks could not be read, or the kernel remembered nothing."""
    history = two_ranks()
    deadlocked(history, 200 + unseen, **other)
    deadlocked(history, 201 - unseen)

    verdict = judged(history)

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")
    assert {culprit.rank for culprit in verdict.culprits} == {1 - unseen}
    assert verdict.confidence > 0.9


def test_of_two_sure_deadlocks_that_of_the_first_rank_is_reported() -> None:
    """One culprit is enough to act."""
    history = two_ranks()
    deadlocked(history, 200)
    deadlocked(history, 201)

    assert {culprit.rank for culprit in judged(history).culprits} == {0}


class WithoutGraph(History):
    """Readings of which no wait graph can be made."""

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Fails for the graph alone."""
        if key == ("wait graph",):
            raise KeyError("a task that no claim knows")
        return super().once(key, make)


def test_an_error_in_the_wait_graph_leaves_a_verdict_that_says_so() -> None:
    """Rules that ask the graph fail one by one, and so does what is said of a job without a cause."""
    history = two_ranks(WithoutGraph())
    deadlocked(history, 200)
    deadlocked(history, 201)

    verdict = judged(history)

    assert (verdict.state, verdict.coverage.ranks_seen) == ("inconclusive", 2)
    assert {"wait graph", "rule deadlocked_locks"} <= {one.witness for one in verdict.missing}


def throttled(periods_share: float, seconds_per_second: float, *, delayed: float) -> Verdict:
    """A job with a quota: in so many of its ten periods a second it is stopped, and its thread waits so long for a CPU."""
    job = Training(card=False)
    for _ in range(27):
        job.goes_on(1.5, STEPS, run_share=1.0 - delayed, delay_share=delayed)
        at = job.history.at
        job.add(
            Cgroup(path="/", version=2, quota_cpus=8.0, periods=round(10 * at), throttled_periods=round(10 * at * periods_share),
                   throttled_seconds=at * seconds_per_second),
        )  # fmt: skip
    return job.verdict()


@pytest.mark.parametrize(
    ("periods_share", "seconds_per_second", "delayed", "confidence"),
    [
        (0.9, 0.6, 0.6, "certain"),
        (0.3, 0.003, 0.003, NOTED),  # a millisecond in each of them
        (0.3, 1.6, 0.02, NOTED),  # summed over sixteen CPUs, and hardly ever the one of the training
    ],
)
def test_a_quota_is_blamed_for_the_time_that_it_takes_and_not_for_the_periods_that_it_touches(
    periods_share: float, seconds_per_second: float, delayed: float, confidence: str
) -> None:
    """Of 100 ms, one or sixty."""
    verdict = throttled(periods_share, seconds_per_second, delayed=delayed)

    assert level_in(verdict, "throttled_cpu") == confidence
    assert (verdict.cause == "throttled_cpu") is (confidence != NOTED)


@pytest.mark.parametrize(
    ("card", "load", "confidence"),
    [
        (False, None, NOTED),  # exported in .bashrc: there is no launch that could block
        (True, "tiny_kernels", "certain"),  # the card waits for its host
        (True, None, "medium"),  # the card is not read
    ],
)
def test_blocking_launches_are_blamed_where_a_card_waits(card: bool, load: str | None, confidence: str) -> None:
    """A variable alone is no fault."""
    job = Training(card=card)
    job.add(
        Process(pid=PID, start_ticks=1, parent_pid=1, name="python", command=("python", "train.py"), python=True,
                torch_loaded=True, environment={"CUDA_LAUNCH_BLOCKING": "1"}),
    )  # fmt: skip
    verdict = job.goes_on(30, STEPS, load=load).verdict()

    assert level_in(verdict, "debug_apis_on") == confidence
    assert (verdict.cause == "debug_apis_on") is (confidence != NOTED)


def test_a_tracer_alone_is_noted() -> None:
    """A debugger is attached to the process, which goes on as before."""
    job = Training(card=False).goes_on(30, STEPS)
    job.add(
        ProcessUsage(pid=PID, state="R", threads=1, cpu_seconds=30.0, major_faults=0, minor_faults=0, resident_bytes=1,
                     tracer_pid=9),
    )  # fmt: skip
    verdict = job.verdict()

    assert verdict.state == "healthy"
    assert level_in(verdict, "debug_apis_on") == NOTED


# How sure a verdict is: each independent source that is taken away lowers it, none raises it, and a trace that agrees makes surer.


HUNG = [
    str(case.relative_to(RECORDINGS))
    for case in cases(RECORDINGS)
    if case.parent.name == "fires" and expected_of(case).state == "hung"
]


def without(recording: Recording, *kinds: type[r.Reading]) -> Recording:
    """What would have been recorded if this had not been read."""
    return replace(recording, records=tuple(one for one in recording.records if type(one.reading) not in kinds))


@pytest.mark.parametrize("case", HUNG)
def test_whatever_is_not_read_no_hang_becomes_surer(case: str) -> None:
    """One kind of reading after the other is left out; the same cause is at most as sure, and without some of them less."""
    whole, at = load_case(RECORDINGS / case), expected_of(RECORDINGS / case).at
    full = diagnose(whole, at)
    less = [diagnose(without(whole, kind), at) for kind in {type(one.reading) for one in whole.records}]
    same = [one.confidence if one.cause == full.cause else 0.0 for one in less]

    assert max(same) <= full.confidence
    assert min(same) < full.confidence


def reads_an_empty_pipe(seconds: int = 90, each_seconds: float = 0.3) -> Recording:
    """A training thread that has read a pipe of its own for so long, told by its task, its stack and its steps."""
    wait = r.Wait(call="read", number=0, kind="read", fd=5, forever=True)
    line = (
        r.Frame(function="train", file="/w/train.py", line=20),
        r.Frame(function="<module>", file="/w/train.py", line=30),
    )
    process = r.Process(
        pid=100,
        parent_pid=1,
        start_ticks=1,
        name="python",
        command=("python", "train.py"),
        python=True,
        torch_loaded=True,
    )
    pipe = r.Descriptor(
        pid=100, fd=5, kind="pipe", target="pipe:[7]", inode=7, access="r", readers=(100,), writers=(100,)
    )
    records = [Record(0.0, process), Record(1.0, pipe)]
    for second in range(seconds):
        at, ago = float(second), second + 1.0
        task = r.Thread(
            pid=100,
            tid=100,
            name="python",
            state="S",
            cpu_seconds=5.0,
            run_seconds=5.0,
            voluntary_switches=50,
            ran_ago_seconds=ago,
            wait=wait,
        )
        steps = r.Steps(
            pid=100, tid=100, count=30, step_ago_seconds=ago, interval_seconds=() if second else (each_seconds,) * 30
        )
        stack = r.Stack(pid=100, tid=100, thread="MainThread", frames=line, samples=20, span_seconds=0.9)
        records += [Record(at, one) for one in (task, stack, steps)]
    session = Session(
        version="x",
        created=1e9,
        mode="run",
        machine=Machine(name="m", kernel="6", architecture="x86_64", cpus=8, memory_bytes=2**34),
        root_pids=(100,),
    )
    return Recording(session, tuple(records))


def test_a_blocked_pipe_is_certain_by_what_the_kernel_says_of_its_task_alone() -> None:
    """When it last ran and what it is blocked in."""
    whole = reads_an_empty_pipe()
    looks = [whole, without(whole, r.Stack), without(whole, r.Steps), without(whole, r.Stack, r.Steps)]

    told = [(verdict.cause, verdict.confidence) for verdict in map(diagnose, looks)]

    assert told == [("blocked_pipe", Level.CERTAIN)] * 4


@pytest.mark.parametrize(("each_seconds", "witness"), [(10.0, False), (1.0, True)])
def test_steps_that_are_not_overdue_are_no_witness(each_seconds: float, witness: bool) -> None:
    """A step 20 s ago says nothing of a hang where steps take 10 s, and something where they take one."""
    verdict = diagnose(reads_an_empty_pipe(20, each_seconds))

    assert (verdict.state == "hung") is witness
    assert ("steps" in {one.witness for one in verdict.evidence}) is witness


ALLREDUCE = KernelShare(
    name="ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    family="collective",
    part="backward",
    count=50,
    seconds=0.0065,
    exposed_seconds=0.0041,
)
SAYS: dict[str, tuple[dict[str, Any], str]] = {
    "host_bound_python": (
        {
            "launch_bound_share": 0.4,
            "idle": {"python": 0.3, "forward": 0.1},
            "idle_modules": (HostShare(name="Block_3", count=9, seconds=0.02),),
        },
        "Block_3",
    ),
    "synchronising": (
        {"syncs": (SyncPoint(call="cudaStreamSynchronize", where="train.py(30): log", count=5, seconds=0.03),)},
        "train.py(30): log",
    ),
    "exposed_communication": ({"exposed_communication_share": 0.2, "kernels": (ALLREDUCE,)}, ALLREDUCE.name),
    "copy_bound": ({"exposed_copy_share": 0.3, "pageable_copies": 12}, "12 copies from pageable memory"),
    "wrong_precision": (
        {
            "full_precision_gemm_share": 0.7,
            "kernels": (
                KernelShare(name="ampere_sgemm_128x64_nn", family="gemm", part="forward", count=9, seconds=0.05),
            ),
        },
        "ampere_sgemm_128x64_nn",
    ),
    "starved_by_transforms": ({"gpu_busy_share": 0.5, "idle": {"data": 0.5}}, ""),
    "starved_by_storage": ({"step_seconds": 0.2, "phases": {"data": 0.13, "forward": 0.05}}, ""),  # on the CPU
}


def finding(cause: str) -> Finding:
    """What a rule says by itself."""
    return Finding(
        cause=cause, state="slow", summary="slow it is", confidence=0.8, culprits=(Culprit(pid=PID, rank=0),)
    )


@dataclass(frozen=True)
class Says:
    """A rule that always says the same."""

    finding: Finding

    def judge(self, case: Case) -> Finding:
        """Whatever was seen."""
        return self.finding


def told(training: Training, cause: str) -> Verdict:
    """The verdict on a job of which one rule has said its cause."""
    return judge(training.case(), [Rule(RULES[0].cause, Says(finding(cause)).judge)])


def trace(**says: Any) -> TorchTrace:
    """A tenth of a second of rank 0."""
    return TorchTrace(pid=PID, rank=0, window_seconds=0.1, steps=5, **says)


@pytest.mark.parametrize("cause", SAYS)
def test_trace_that_agrees_makes_surer_and_names(cause: str) -> None:
    """One more witness in the evidence, half of the doubt gone, and the name in the summary."""
    says, name = SAYS[cause]
    training = Training(card=False)
    training.add(trace(**says))
    sharp = told(training, cause)

    assert sharp.confidence == 0.8
    assert [one.witness for one in sharp.evidence] == ["torch_trace"]
    assert name in sharp.summary


@pytest.mark.parametrize("cause", SAYS)
def test_trace_that_says_nothing_of_it_changes_nothing(cause: str) -> None:
    """Nor does one of long ago, nor none at all."""
    training = Training(card=False)
    before = told(training, cause)
    training.add(trace(**SAYS[cause][0]))
    training.history.at += 1000.0
    training.add(trace().__class__(pid=PID + 1, window_seconds=0.1))

    after = told(training, cause)

    for verdict in (before, after):
        assert (verdict.summary, verdict.confidence, verdict.evidence) == ("slow it is", 0.8, ())


def test_cause_of_which_no_trace_speaks_stays_as_it_is() -> None:
    """A dead worker is not deader by it."""
    training = Training(card=False)
    training.add(trace(**SAYS["host_bound_python"][0]))

    verdict = told(training, "dead_worker")

    assert (verdict.summary, verdict.confidence, verdict.evidence) == ("slow it is", 0.8, ())


def trained(**says: Any) -> Training:
    """A job whose card is full, and a trace of it."""
    training = Training().steps(10, *([0.1] * 9))
    training.goes_on(14, (FORWARD, BACKWARD, OPTIMIZER), load="elementwise")
    training.steps(90, *([0.1] * 60))
    training.add(trace(**says))
    return training


ATTENTION = "slow_attention_fallback"


def found(training: Training) -> Finding | Verdict | None:
    """What is said of the attention, as the verdict or beside it."""
    verdict = training.verdict()
    beside = next((one for one in verdict.findings if one.cause == ATTENTION), None)
    return verdict if verdict.cause == ATTENTION else beside


def test_plain_attention_in_a_trace_is_proof() -> None:
    """No counter and no stack shows which kernel torch chose; the trace does, with its share of the card."""
    seen = found(trained(math_attention_calls=36, math_attention_share=0.25))

    assert seen is not None
    assert "36 times" in seen.evidence[0].observed
    assert seen.confidence > 0.6


def test_the_line_that_calls_attention_is_to_blame_where_it_was_seen() -> None:
    """A trace knows no lines of the program; the samples may."""
    training = trained(math_attention_calls=36, math_attention_share=0.25)
    (line,) = {frame for frame in FORWARD if frame.file == CERTAINTY_TRAIN}
    training.add(SourceLine(file=CERTAINTY_TRAIN, line=line.line, text="", calls=("F.scaled_dot_product_attention",)))
    seen, unseen = found(training), found(trained(math_attention_share=0.2))

    assert seen is not None
    assert unseen is not None
    assert [one.frame for one in seen.culprits] == [f"{line.function} (train.py:{line.line})"]
    assert [one.frame for one in unseen.culprits] == [None]


def test_fused_attention_in_a_trace_clears_it() -> None:
    """A kernel of the attention family ran: it is something else."""
    training = trained(math_attention_calls=0, math_attention_share=0.0, families={"attention": 0.2, "gemm": 0.8})

    assert found(training) is None


# What a line or a share alone would say is asked of the kernel, or of the other ranks, before it is reported with confidence.


PRINT = RECORDINGS / "slow_output" / "lookalike" / "arithmetic_in_a_print"
CORROBORATION_TURNS = RECORDINGS / "straggling_rank" / "lookalike" / "late_by_turns"
HOOK = RECORDINGS / "straggling_rank" / "fires" / "hook_that_asks_a_server"
SAVES = RECORDINGS / "checkpointing" / "fires" / "busy_rank_zero_saves"


def test_a_line_that_prints_and_computes_is_output_only_where_the_thread_is_in_the_kernel() -> None:
    """Writing costs time there, or sleep."""

    def changed(reading: Reading) -> Reading:
        if isinstance(reading, Thread):
            return msgspec.structs.replace(reading, system_seconds=(reading.run_seconds or 0.0) / 2)
        return reading

    assert retold(PRINT).cause != "slow_output"
    assert retold(PRINT, changed).cause == "slow_output"


def test_a_library_that_lays_out_what_is_printed_is_output_however_much_it_computes() -> None:
    """A table, or a picture in letters."""
    lays_out = Frame("render", "/usr/lib/python3/dist-packages/rich/table.py", 700)

    def changed(reading: Reading) -> Reading:
        if not isinstance(reading, Stack) or not reading.frames or "/lib/python3" in reading.frames[0].file:
            return reading
        return msgspec.structs.replace(reading, frames=(lays_out, *reading.frames))

    assert retold(PRINT, changed).cause == "slow_output"


def test_ranks_that_are_late_by_turns_are_no_sure_lack_of_bandwidth() -> None:
    """One of four may compute at any time while the others wait for it."""
    verdict = retold(CORROBORATION_TURNS)

    assert level(verdict.confidence) != "certain"
    assert "by turns for each other" in verdict.summary


def test_a_rank_that_sleeps_in_a_hook_of_its_own_does_not_wait_for_the_others() -> None:
    """Though the hook runs below its backward pass."""
    assert [one.rank for one in retold(HOOK).culprits] == [1]


@pytest.mark.parametrize(
    ("loops", "calls", "surely"),
    [(("while",), ("save", "load", "equal"), False), (("while",), ("save", "backward", "step"), True), ((), (), True)],
    ids=["again and again", "trains", "once"],
)
def test_a_save_in_a_loop_that_trains_nothing_may_be_tried_again_and_again(
    loops: tuple[str, ...], calls: tuple[str, ...], surely: bool
) -> None:
    """Until what was written is found to be right, which it may never be."""

    def changed(reading: Reading) -> Reading:
        if not isinstance(reading, SourceLine):
            return reading
        return msgspec.structs.replace(reading, loops=loops, loop_calls=calls, calls_unnamed=False)

    stacks = (one.reading for one in load_case(SAVES).records if isinstance(one.reading, Stack))
    lines = {
        (frame.file, frame.line)
        for stack in stacks
        for frame in stack.frames
        if frame.file.startswith("/home/user/perfwatch")
    }
    more = (SourceLine(file=file, line=line, text="", loops=loops, loop_calls=calls) for file, line in lines)
    verdict = retold(SAVES, changed, *more)

    assert verdict.cause == "checkpointing"
    assert (level(verdict.confidence) == "certain") is surely


def test_who_asks_hundreds_of_times_a_second_may_poll_and_backs_off_from_nothing() -> None:
    """What a child puts into a ring in shared memory."""
    verdict = retold(RECORDINGS / "retrying" / "fires" / "polls_a_shared_ring")

    assert level(verdict.confidence) in ("medium", "low")
    assert "another thread or process may produce what it waits for" in verdict.summary


# A rank that never trains and waits for what it is sent: that is its part, and it waits for no late rank.
EVALUATES = RECORDINGS / "straggling_rank" / "lookalike" / "rank_that_evaluates_what_it_is_sent"
EVALUATOR = 7457
TORCH = "/home/user/venv/lib/python3.11/site-packages/torch/"
CORROBORATION_BACKWARD = Frame("backward", TORCH + "_tensor.py", 600)
ALL_REDUCE = Frame("all_reduce", TORCH + "distributed/distributed_c10d.py", 3100)


def evaluator(also: Frame | None = None, where: str = "") -> Verdict:
    """The recorded job, where the evaluator is in this frame too wherever its stack has a frame of that part of torch."""

    def changed(reading: Reading) -> Reading:
        if also is None or not isinstance(reading, Stack) or reading.pid != EVALUATOR:
            return reading
        if not any(f"/torch/{where}/" in frame.file for frame in reading.frames):
            return reading
        return msgspec.structs.replace(reading, frames=(*reading.frames[:-1], also, reading.frames[-1]))

    return retold(EVALUATES, changed)


def test_a_rank_that_evaluates_what_it_is_sent_makes_no_straggler_of_the_one_that_trains() -> None:
    """Nor is the job busy with an evaluation: its steps go on."""
    verdict = evaluator()

    assert verdict.state == "healthy"
    assert not {"straggling_rank", "evaluating"} & {one.cause for one in verdict.findings}


@pytest.mark.parametrize(("also", "where"), [(CORROBORATION_BACKWARD, "nn"), (ALL_REDUCE, "distributed")])
def test_one_that_trains_or_comes_to_a_collective_of_all_waits_for_a_late_rank(also: Frame, where: str) -> None:
    """It was seen in a backward pass, or waits in an all_reduce, to which both have to come."""
    verdict = evaluator(also, where)

    assert "straggling_rank" in {verdict.cause, *(one.cause for one in verdict.findings)}
