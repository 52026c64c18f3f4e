"""How sure a verdict is: each independent source that is taken away lowers it, none raises it, and a trace that agrees makes surer."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from perfwatch.gauntlet.recorded import cases, expected_of
from perfwatch.recording.recording import Record, Recording
from perfwatch.recording.session import Machine, Session
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose, judge
from perfwatch.triage.rule import Rule
from perfwatch.triage.rules import RULES
from perfwatch.verdict import Culprit, Finding, Level, Verdict
from perfwatch_probes import readings as r
from perfwatch_probes.readings import HostShare, KernelShare, SourceLine, SyncPoint, TorchTrace
from tests.recorded import RECORDINGS, load_case
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, TRAIN, Training

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
    (line,) = {frame for frame in FORWARD if frame.file == TRAIN}
    training.add(SourceLine(file=TRAIN, line=line.line, text="", calls=("F.scaled_dot_product_attention",)))
    seen, unseen = found(training), found(trained(math_attention_share=0.2))

    assert seen is not None
    assert unseen is not None
    assert [one.frame for one in seen.culprits] == [f"{line.function} (train.py:{line.line})"]
    assert [one.frame for one in unseen.culprits] == [None]


def test_fused_attention_in_a_trace_clears_it() -> None:
    """A kernel of the attention family ran: it is something else."""
    training = trained(math_attention_calls=0, math_attention_share=0.0, families={"attention": 0.2, "gemm": 0.8})

    assert found(training) is None
