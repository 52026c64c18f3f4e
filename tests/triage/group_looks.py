"""Looks at a job whose process groups are asked: recorded answers of NCCL's RAS service and dumps of the flight recorder."""

from collections.abc import Iterable
from pathlib import Path

from msgspec import structs

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.flight_record import parse as parse_record
from perfwatch_probes.nccl_report import parse as parse_report
from perfwatch_probes.readings import Communicator, Process, Reading, RecordedGroup, Thread
from tests.probes.ras_answers import ras_answer
from tests.sessions import session

RECORDED = Path(__file__).parents[1] / "probes" / "nccl"
PIDS = {0: 607, 1: 608}


def case(*looks: Iterable[Reading], world: int = 2, apart_seconds: float = 3.0, here: int | None = None) -> Case:
    """So many ranks, all of them (or the first ``here``) on this machine, looked at so many seconds apart."""
    history = History()
    for rank in range(world if here is None else here):
        pid = PIDS.get(rank, 700 + rank)
        who = Process(pid=pid, start_ticks=1, parent_pid=1, name="python", command=("python",), python=True, rank=rank,
                      world_size=world)  # fmt: skip
        history.add(0.0, who)
    for number, look in enumerate(looks):
        for reading in look:
            history.add(number * apart_seconds, reading)
    history.at = len(looks) * apart_seconds
    return Case(history, session())


def report(name: str, version: str = "2.28.9") -> list[Communicator]:
    """A recorded answer of RAS, its processes known as ours."""
    found = parse_report(ras_answer(f"{version}_{name}"))
    order = sorted({m.pid for one in found for m in one.members if m.pid is not None})
    ours = dict(zip(order, PIDS.values(), strict=False))
    return [
        structs.replace(
            one, members=tuple(structs.replace(m, pid=ours.get(m.pid or 0), local=m.pid in ours) for m in one.members)
        )
        for one in found
    ]


def records(name: str) -> list[RecordedGroup]:
    """The dumps of both ranks."""
    return [
        group
        for rank, pid in PIDS.items()
        for group in parse_record((RECORDED / f"fr_torch2.11_{name}_rank{rank}.pickle").read_bytes(), pid, rank, "pipe")
    ]


def asleep(rank: int, seconds: float) -> Thread:
    """What any user may read of a thread: that it sleeps, and since when."""
    pid = PIDS.get(rank, 700 + rank)
    return Thread(pid=pid, tid=pid, name="python", state="S", cpu_seconds=9.0, run_seconds=9.0, voluntary_switches=7,
                  ran_ago_seconds=seconds)  # fmt: skip


def said(*looks: Iterable[Reading], world: int = 2, apart_seconds: float = 3.0) -> Verdict:
    """The verdict on these answers of the job's process groups, where nothing else of its ranks can be read."""
    return judge(case(*looks, world=world, apart_seconds=apart_seconds))


def accused(verdict: Verdict) -> tuple[str | None, list[int | None]]:
    """The cause that is reported or suspected, and the ranks that are its culprits."""
    cause = verdict.cause if verdict.suspect is None else verdict.suspect.cause
    return cause, [culprit.rank for culprit in verdict.culprits]
