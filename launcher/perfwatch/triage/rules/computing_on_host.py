"""A long native computation on the CPU (linear algebra, tokenising, sorting), or a pass over the data for figures of it."""

from functools import partial

from perfwatch.triage.busy import Phase, phases
from perfwatch.triage.cards.accelerated import drives_a_card
from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.case import Case
from perfwatch.triage.independence import ONE_SOURCE
from perfwatch.triage.moving.library_loops import library_loop
from perfwatch.triage.ranks.calls import exchange, leaves
from perfwatch.triage.ranks.groups import growing
from perfwatch.triage.ranks.lateness import LATELY_SECONDS, in_collective, meets_again
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.gathering import gathering
from perfwatch.triage.shares.preparing import called_in_training, prepares_natively
from perfwatch.triage.shares.saving import SYNCS, comes_back
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Finding, Outcome
from perfwatch_probes.readings import Frame, ProcessUsage, Stack, Thread

CAUSE = Cause("computing_on_host", "busy", "user_code", (Thread, Stack))

RUNNING_SHARE = 0.5  # of a core
CERTAIN = 0.79  # a call that spins for what others are to bring looks the same from outside
UNSEEN = 0.7  # ranks that are not here, or have left, or a card may be waited for in that very call; or it comes back from it
EACH_STEP = 0.65  # the loop around trains: it may be what each step waits for
ONE_LINE_SHARE = 0.9
MODEL_SHARE = 0.2  # of samples in forward passes: above it a model runs, which is an evaluation


def judge(case: Case) -> Outcome:
    """Fires on a rank that computes in native code below one line, while no collective goes on."""
    if growing(case) or any(meets_again(case, rank, LATELY_SECONDS) for rank in case.ranks):
        return None  # the ranks meet in between: it is late, not long
    for phase in phases(case):
        if (found := _of_phase(case, phase)) is not None:
            return found
    return gathering(case, CAUSE)


def _of_phase(case: Case, phase: Phase) -> Finding | None:
    chain = case.chains[phase.rank.pid]
    loop = library_loop(case.history, chain.end.node)  # which may turn for ever
    if not _runs_natively(case, phase, chain, loop):
        return None
    cpu = case.history.rate(ProcessUsage, phase.rank.pid, of=lambda u: u.cpu_seconds, seconds=6.0) or 0.0
    one_line = _one_line(phase)
    if max(cpu, phase.runs) < RUNNING_SHARE or not (one_line or prepares_natively(case, phase.rank)):
        return None
    source = line_of(case.history, phase.profile.top_line())
    if source is not None and names(source.calls) & SYNCS:
        return None  # the kernel writes to a disk
    waits = exchange(case, chain) is not None
    if waits and not all(rank.alive for rank in case.job.ranks):
        return None
    what = "an exchange of MPI runs, or waits for other ranks" if waits else _what(one_line, loop)
    pid, owner = f"pid {phase.rank.pid}", "never seen to own it" if one_line else "seen without it most of the time"
    runs = f"{phase.runs:.0%} of a core in the thread, {cpu:.1f} cores in the process"
    return phase.finding(
        CAUSE,
        what + (f": {source.text.strip()[:80]}" if source else ""),
        ONE_SOURCE if waits else _certain(case, phase, one_line, loop),
        (
            case.saw("thread", pid, "computes", runs, "0 would mean a hang"),
            case.saw("gil", pid, "has released the GIL", owner, "an owner would block others"),
        ),
    )


def _runs_natively(case: Case, phase: Phase, chain: Chain, loop: Frame | None) -> bool:
    """Whether it is the training thread itself that runs, in native code or a library's loop, and for no batch, model or card."""
    runs = chain.end.kind == "native" or (chain.end.kind == "python" and loop is not None)
    if not runs or chain.end.node.tid != chain.start.tid or phase.profile.seen("loader_wait", "collective"):
        return False
    evaluates = phase.profile.share("forward") > MODEL_SHARE
    return not (evaluates or drives_a_card(case, phase) or comes_back(case, phase.rank, phase.profile))


def _certain(case: Case, phase: Phase, one_line: bool, loop: Frame | None) -> float:
    if not one_line:
        return EACH_STEP if called_in_training(case, phase.rank) else UNSEEN
    left = any(leaves(chain) for chain in case.chains.values())
    meets = left or phase.profile.turns(partial(in_collective, case))
    return CERTAIN if loop is None and _told(case, phase) and not meets else UNSEEN


def _told(case: Case, phase: Phase) -> bool:
    """Whether nobody can be waited for in that line: all ranks are here, and where the rank may have a card its text is known."""
    read = line_of(case.history, phase.profile.top_line()) is not None
    return case.job.covered and (read or not cards_of(case.history, phase.rank.pid).uuids)


def _what(one_line: bool, loop: Frame | None) -> str:
    if loop is not None:
        return f"a loop of a library turns, {show(loop)}"
    return "a long native computation runs" + ("" if one_line else " in many calls")


def _one_line(phase: Phase) -> bool:
    lines = phase.profile.lines()
    return bool(lines) and lines.most_common(1)[0][1] / phase.profile.samples >= ONE_LINE_SHARE


RULES = (Rule(CAUSE, judge),)
