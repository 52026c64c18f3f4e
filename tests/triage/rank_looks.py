"""Looks at a job of several ranks in which one is elsewhere: what it trained first, how the others wait, and what it does."""

from collections.abc import Sequence

from msgspec import structs

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Descriptor, Frame, Process, ProcessUsage, Socket, Stack, Steps, Thread, Wait
from tests.sessions import session

Frames = tuple[Frame, ...]

TRAIN, LIB = "/app/train.py", "/usr/lib/python3.11/"
TORCH = LIB + "site-packages/torch/"
MODULE = Frame("<module>", TRAIN, 99)
FIRST = 200  # pid of rank 0
STEP: tuple[Frames, ...] = (
    (Frame("forward", TORCH + "nn/modules/linear.py", 125), Frame("step", TRAIN, 11), MODULE),
    (Frame("backward", TORCH + "_tensor.py", 600), Frame("step", TRAIN, 12), MODULE),
    (Frame("step", TORCH + "optim/sgd.py", 120), Frame("step", TRAIN, 13), MODULE),
)
BARRIER = (Frame("barrier", TORCH + "distributed/distributed_c10d.py", 4800), Frame("evaluate", TRAIN, 83), MODULE)
FOR_EVER = Wait(call="futex", number=202, kind="futex", forever=True)
BEGAN, STOPPED = 20.0, 100.0  # a few hundred steps, and then something else
STEP_SECONDS, LOOK_SECONDS = 0.25, 0.5


def job(ranks: int, trained: bool = True) -> History:
    """So many ranks on this host, of which each has trained from BEGAN to STOPPED, or none yet."""
    history = History()
    for rank in range(ranks):
        known = (rank, ranks) if ranks > 1 else (None, None)
        history.add(0.0, process(FIRST + rank, 1, "python train.py", *known))
        if trained:
            runs(history, FIRST + rank, STEP, BEGAN, STOPPED)
            _counts(history, FIRST + rank)
    return history


def process(pid: int, parent: int, command: str, rank: int | None = None, world_size: int | None = None) -> Process:
    """A rank, or a program that one has started."""
    words = tuple(command.split())
    python = words[0] == "python"
    return Process(pid=pid, start_ticks=pid, parent_pid=parent, name=words[0], command=words, python=python, age_seconds=0.5,
                   torch_loaded=python, rank=rank, world_size=world_size)  # fmt: skip


def _counts(history: History, pid: int) -> None:
    steps = int((STOPPED - BEGAN) / STEP_SECONDS)
    for second in range(int(BEGAN) + 1, int(STOPPED) + 300):
        done = min(int((second - BEGAN) / STEP_SECONDS), steps)
        new = (STEP_SECONDS,) * int(1 / STEP_SECONDS) if done < steps else ()
        ago = second - BEGAN - done * STEP_SECONDS
        history.add(float(second), Steps(pid=pid, tid=pid, count=done, step_ago_seconds=ago, interval_seconds=new))


def looks(since: float, until: float) -> list[float]:
    """The moments between these at which a thread is looked at."""
    return [since + (number + 1) * LOOK_SECONDS for number in range(int((until - since) / LOOK_SECONDS))]


def stands(
    history: History, pid: int, frames: Frames, wait: Wait, until: float, since: float = STOPPED, tid: int | None = None
) -> None:
    """A thread (the main one) in one call, from a moment on."""
    tid = pid if tid is None else tid
    for at in looks(since, until):
        left = None if wait.remaining_seconds is None else wait.remaining_seconds - (at - since)
        now = structs.replace(wait, remaining_seconds=left)
        history.add(at, Thread(pid=pid, tid=tid, name="python", state="S", cpu_seconds=5.0, run_seconds=5.0, read_calls=1,
                               voluntary_switches=50, ran_ago_seconds=at - since, wait=now, write_calls=1))  # fmt: skip
        if frames:
            history.add(at, Stack(pid=pid, tid=tid, frames=frames, samples=10, span_seconds=LOOK_SECONDS))


def runs(
    history: History, pid: int, turns: Sequence[Frames], since: float, until: float, tid: int | None = None,
    share: float = 0.95, calls_per_second: float = 0.0, wait: Wait | None = None, bytes_per_second: float = 0.0,
    name: str = "python", switches_per_second: float = 20.0, delay_share: float = 0.0,
) -> None:  # fmt: skip
    """A thread that runs for a share of the time, at one line after the other; ``wait``: what it is in between.

    ``delay_share``: of the time, in which it wants a CPU and gets none.
    """
    tid = pid if tid is None else tid
    for number, at in enumerate(looks(since, until)):
        ran, calls = 5.0 + (at - since) * share, int((at - since) * calls_per_second)
        history.add(at, Thread(pid=pid, tid=tid, name=name, state="S" if wait else "R", cpu_seconds=ran, wait=wait,
                               run_seconds=ran, run_delay_seconds=(at - since) * delay_share if delay_share else None,
                               voluntary_switches=int(at * switches_per_second), ran_ago_seconds=0.01, read_calls=calls,
                               write_calls=calls, written_chars=int((at - since) * bytes_per_second)))  # fmt: skip
        for sample in range(5 if turns else 0):
            frames = turns[(5 * number + sample) % len(turns)]
            taken = at - LOOK_SECONDS + (sample + 1) * LOOK_SECONDS / 5
            history.add(taken, Stack(pid=pid, tid=tid, frames=frames, samples=2, span_seconds=LOOK_SECONDS / 5))
        if turns:
            history.add(at, Stack(pid=pid, tid=tid, frames=turns[5 * number % len(turns)], owns_gil=wait is None))


def sends(history: History, pid: int, fd: int, bytes_per_second: float, until: float, since: float = STOPPED) -> None:
    """A connection that takes so much of what is sent."""
    for at in looks(since, until):
        socket = Socket(family="tcp", state="ESTABLISHED", local=f"10.0.0.1:{fd}", peer="52.0.0.1:443", received_bytes=9,
                        sent_bytes=int((at - since) * bytes_per_second), sent_ago_seconds=0.01)  # fmt: skip
        history.add(at, Descriptor(pid=pid, fd=fd, kind="socket", target=f"socket:[{fd}]", inode=fd, socket=socket))


def uses(
    history: History, pid: int, cores: float, bytes_per_second: float, until: float, since: float = STOPPED
) -> None:
    """What a process uses of CPU time, and what it reads and writes."""
    for at in looks(since, until):
        seconds = at - since
        history.add(at, ProcessUsage(pid=pid, state="S", threads=1, cpu_seconds=cores * seconds, major_faults=0, minor_faults=0,
                                     resident_bytes=2**30, read_chars=int(seconds * bytes_per_second), written_chars=0))  # fmt: skip


def judged(history: History, at: float) -> Verdict:
    """What is said at a moment of what was seen up to then; ask for later moments later."""
    history.at = at
    return judge(Case(history, session(root_pids=(FIRST,))))
