"""True if the launcher starts the ranks anew, again and again: by the processes that came and went, and by its own count."""

from dataclasses import dataclass

from perfwatch.triage.case import Case
from perfwatch.triage.roles.job import RESTART_COUNT, TICKS_PER_SECOND, Member
from perfwatch.triage.roles.placement import launches
from perfwatch_probes.bounds import count
from perfwatch_probes.readings import Traceback

SHORT_LIFE_SECONDS = 600.0  # mean life of a generation: a run that fails once a day is no loop
OUTLIVED = 2.0  # a generation that lives so many times longer than those before it has broken the loop
SOON_SECONDS = 60.0  # longer than that nobody waits for a verdict to be told that all is well


@dataclass(frozen=True)
class Restarts:
    """A rank that is replaced again and again."""

    rank: int
    processes: int  # generations, the living one included
    seconds: float  # since the first of them started
    proves_in_seconds: float  # then the newest has lived for so much longer than those before it that it lasts


def unproven(case: Case) -> bool:
    """True if the launcher has restarted the ranks once, and within a minute it will be known whether the new ones last."""
    found = restarts(case)
    return found is not None and found.processes == 2 and found.proves_in_seconds <= SOON_SECONDS


def restarts(case: Case) -> Restarts | None:
    """The rank with the most generations; None where nothing is replaced after it failed, or where the newest one lasts."""
    best = max((_counted(case, member) for member in case.job.ranks), key=lambda one: one.processes, default=None)
    seen = _watched(case)
    if seen is not None and (best is None or best.processes <= seen.processes):
        return seen
    return best if best is not None and best.processes > 1 else None


def _watched(case: Case) -> Restarts | None:
    """Processes of one rank that one and the same launcher started one after the other while we looked, each after a bad end."""
    generations: dict[tuple[int, int], list[Member]] = {}
    for member in case.job.members.values():
        above = case.job.members.get(member.process.parent_pid)
        if (
            member.process.rank is not None
            and member.process.python
            and above is not None
            and above.process.rank is None
        ):
            generations.setdefault((member.process.rank, above.pid), []).append(member)
    found = (_in_a_row(case, rank, members) for (rank, _), members in generations.items())
    return max(filter(None, found), key=lambda one: one.processes, default=None)


def _in_a_row(case: Case, rank: int, members: list[Member]) -> Restarts | None:
    """Generations up to the newest, if it is there because those before it were short and failed: jobs of a script just follow."""
    *before, newest = sorted(members, key=lambda member: member.process.start_ticks)
    failed = sum(_failed(case, member) for member in before)
    if not failed:
        return None
    apart = (newest.process.start_ticks - before[0].process.start_ticks) / TICKS_PER_SECOND
    age, life = _age(case, newest), apart / len(before)
    left = OUTLIVED * life - age if newest.alive else 0.0
    return None if life > SHORT_LIFE_SECONDS or left < 0.0 else Restarts(rank, failed + 1, apart + age, left)


def _failed(case: Case, member: Member) -> bool:
    """True if a process ended badly. How, often only its launcher knows; torchrun and the like start anew what failed, and no other."""
    end = member.ended
    if end is None or end.exit_code == 0:
        return False
    if end.exit_code is not None or end.signal is not None or case.history.series(Traceback, member.pid):
        return True
    above = case.job.members.get(member.process.parent_pid)
    return above is not None and launches(above.process)


def _counted(case: Case, member: Member) -> Restarts:
    """By the launcher's count in the rank's environment, if the generations before this one were short."""
    none = Restarts(member.rank or 0, 1, 0.0, 0.0)
    times = count(member.process.environment.get(RESTART_COUNT)) or 0
    above = case.job.members.get(member.process.parent_pid)
    if times < 1 or above is None:
        return none
    age, launched = _age(case, member), _age(case, above)
    life = (launched - age) / times
    if life > SHORT_LIFE_SECONDS or age > OUTLIVED * life:
        return none
    return Restarts(member.rank or 0, times + 1, launched, OUTLIVED * life - age)


def _age(case: Case, member: Member) -> float:
    seen = case.history.series(type(member.process), member.pid)
    return (member.process.age_seconds or 0.0) + case.at - (seen[-1].at if seen else 0.0)
