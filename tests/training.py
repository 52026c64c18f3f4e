"""A training process for tests of triage: its threads, stacks and steps, second by second, beside the loads of ``cards``."""

from collections.abc import Mapping, Sequence
from typing import Any

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict, confidence_word
from perfwatch_probes.readings import (
    Cgroup,
    Frame,
    GpuProcess,
    Host,
    Process,
    Reading,
    SourceLine,
    Stack,
    Steps,
    Thread,
    Wait,
)
from tests.cards import UUID, bound, h200, under
from tests.sessions import session

PID, ENGINE = 700, 731
TRAIN = "/app/train.py"
TORCH = "/home/user/venv/lib/python3.12/site-packages/torch"
STEP = Frame("train", TRAIN, 20)
FORWARD = (Frame("forward", f"{TORCH}/nn/modules/linear.py", 134), Frame("train", TRAIN, 12))
BACKWARD = (Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 869), Frame("train", TRAIN, 13))
OPTIMIZER = (Frame("step", f"{TORCH}/optim/adam.py", 400), Frame("train", TRAIN, 14))
READS_LOSS = (STEP,)
SLEEP = Wait(call="futex", number=202, kind="futex", forever=True)


class Training:
    """One process in a history that grows, half a second a look. ``sample``: what every sample of the card says besides."""

    def __init__(
        self,
        *,
        binding: Reading | None = None,
        card: bool = True,
        monitored: bool = True,
        sample: Mapping[str, Any] | None = None,
    ) -> None:
        self.history = History()
        self._monitored, self._sample = monitored, sample or {}
        self.add(
            Process(
                pid=PID,
                start_ticks=1,
                parent_pid=1,
                name="python",
                command=("python", "train.py"),
                python=True,
                torch_loaded=True,
            ),
            Host(
                cpus_online=16,
                user_seconds=0.0,
                system_seconds=0.0,
                idle_seconds=0.0,
                iowait_seconds=0.0,
                steal_seconds=0.0,
                memory_total_bytes=2**36,
                memory_available_bytes=2**35,
            ),
            Cgroup(path="/", version=2),
            SourceLine(file=TRAIN, line=20, text="    total += loss.item()", calls=("loss.item",)),
        )
        if card:
            listed = GpuProcess(uuid=UUID, pid=PID, local_pid=PID, memory_bytes=2**30)
            self.add(h200(), binding or bound(PID), listed)

    def add(self, *readings: Reading) -> None:
        """Readings of now."""
        for reading in readings:
            self.history.add(self.history.at, reading)

    def goes_on(
        self,
        seconds: float,
        stacks: Sequence[tuple[Frame, ...]],
        *,
        load: str | None = None,
        run_share: float = 1.0,
        wait: Wait | None = None,
        engine: float | None = None,
        samples: int = 5,
        owns_gil: bool | None = False,
        writes: int = 0,
        delay_share: float = 0.0,
    ) -> "Training":
        """Let so many seconds pass: the training thread is seen in these stacks in turn, the card under this load.

        ``writes``: calls a second by which it writes.
        """
        began = self.history.at
        if load is not None:
            under(self.history, load, began + 0.1, began + seconds, monitored=self._monitored, **self._sample)
        for number in range(round(seconds / 0.5)):
            self.history.at = began + 0.5 * (number + 1)
            at = self.history.at
            ran = None if run_share > 0.5 else at - began
            state = "S" if wait else "R"
            self.add(_thread(PID, "python", at * run_share, state, wait, ran, round(at * writes), at * delay_share))
            if engine is not None:
                self.add(_thread(ENGINE, "pt_autograd_0", at * engine, "R", None, None))
            frames = stacks[number % len(stacks)]
            self.add(Stack(pid=PID, tid=PID, frames=frames, samples=samples, span_seconds=0.4, owns_gil=owns_gil))
        return self

    def steps(
        self, count: int, *intervals: float, ago: float = 0.0, modes: tuple[str, ...] | None = None
    ) -> "Training":
        """What the agent counted until now, and what it was told to be on in torch."""
        counted = Steps(pid=PID, tid=PID, count=count, step_ago_seconds=ago, interval_seconds=intervals, modes=modes)
        self.add(counted)
        return self

    def verdict(self) -> Verdict:
        """What is said of it now."""
        return judge(self.case())

    def case(self) -> Case:
        """For a rule or a figure of its own."""
        return Case(self.history, session(root_pids=(PID,), conditions={"patience_seconds": 60.0}))


def level(confidence: float) -> str:
    """The word for a confidence; one that is low is no verdict, or stands beside one."""
    return confidence_word(confidence)


def level_in(verdict: Verdict, cause: str) -> str | None:
    """How sure a verdict is of a cause, as the verdict itself or beside it; None where it does not name that."""
    if verdict.cause == cause:
        return level(verdict.confidence)
    return next((level(one.confidence) for one in verdict.findings if one.cause == cause), None)


def confidence_in(verdict: Verdict, cause: str) -> float:
    """How sure a cause is, be it named or found beside; 0 where it is not found."""
    if verdict.cause == cause:
        return verdict.confidence
    return max((one.confidence for one in verdict.findings if one.cause == cause), default=0.0)


def _thread(
    tid: int,
    name: str,
    run: float,
    state: str,
    wait: Wait | None,
    ran_ago: float | None,
    writes: int = 0,
    delay: float = 0.0,
) -> Thread:
    return Thread(
        pid=PID,
        tid=tid,
        name=name,
        state=state,
        cpu_seconds=run,
        run_seconds=run,
        run_delay_seconds=delay,
        voluntary_switches=0,
        ran_ago_seconds=ran_ago,
        wait=wait,
        read_calls=0,
        write_calls=writes,
    )
