"""torch.compile: the first compilation, and those that come back."""

from perfwatch.triage.busy import MOVES_SHARE, phases
from perfwatch.triage.cards.accelerated import since_first_step
from perfwatch.triage.case import Case
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.in_compiler import in_compiler, passed_before, returns, steps_around, untorn
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.thresholds import CERTAIN, HIGH, LATELY_SECONDS, MEDIUM, MOSTLY, TWICE
from perfwatch.triage.slowness import certainty, slow, worst
from perfwatch.triage.words.frames import show, tags
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import ProcessUsage, Stack, Thread

COMPILING = Cause("compiling", "busy", "user_code", (Thread, Stack))

COMPILERS = ("cc1plus", "cc1", "gcc", "g++", "clang", "ptxas", "nvcc", "ld", "as", "triton")
COMPILING_SHARE = 0.85  # where the model runs in between, but no optimizer: each shape is tried once before training


def compiling(case: Case) -> Outcome:
    """Fires on a rank whose training thread is in the compiler."""
    helpers = [
        m.pid
        for m in case.job.members.values()
        if m.alive
        and (m.role == "compile" or m.process.name in COMPILERS)
        and (case.history.rate(ProcessUsage, m.pid, of=lambda u: u.cpu_seconds, seconds=6.0) or 0.0) > MOVES_SHARE
    ]
    for phase in phases(case, moving=True):
        steps = case.progress[phase.rank.pid].kind == "moving"
        # What a backward pass needs is compiled in autograd's own thread, for which the training thread waits there.
        awaits = bool(helpers) and not steps
        share = phase.profile.share_where(in_compiler(case.history, phase.profile, awaits))
        if share < (COMPILING_SHARE if steps else MOSTLY):
            continue
        whole = case.profile(phase.rank, LATELY_SECONDS)
        again = returns(case.history, whole) > 0 and steps_around(case.history, whole) is not False
        comes_back = steps and (phase.profile.seen("optimizer") or stepped(case.profile(phase.rank)))
        if comes_back or came_back(case, phase.rank, whole):
            continue  # ``recompiling``
        ran_compiler = any(m.process.name in COMPILERS for m in case.job.members.values())
        if phase.runs < MOVES_SHARE and not helpers and not ran_compiler:
            continue
        was = case.saw(
            "engine", f"pid {phase.rank.pid}", "made passes before", "it ran before this compilation", "never"
        )
        before = (was,) if again else ()
        return phase.finding(
            COMPILING,
            "torch.compile is compiling" + (", though passes were made before," if again else ""),
            MEDIUM if again else CERTAIN,
            (
                case.saw(
                    "stack",
                    f"pid {phase.rank.pid}",
                    "is in the compiler, or waits for it",
                    f"{share:.0%} of {phase.profile.samples} samples",
                    "training code",
                ),
                case.saw(
                    "thread",
                    f"pid {phase.rank.pid}",
                    "something works",
                    f"{phase.runs:.0%} of a core, {len(helpers)} compile processes busy",
                    "above 2 %",
                ),
                *before,
            ),
        )
    return None


RECOMPILING = Cause("recompiling", "slow", "user_code", (Stack,))


def recompiling(case: Case) -> Outcome:
    """Fires when the compiler comes back between steps."""
    found = worst(case, lambda rank, seen: _trained(case, rank, seen).share_where(compiles))
    if found is None:
        return None
    rank, whole, lost = found
    seen = _trained(case, rank, whole)
    steps = case.steps(rank)
    stretches = len(seen.runs(compiles))
    advanced = steps.advanced > 0 if steps is not None else stepped(seen)
    if stretches < TWICE or not (advanced or came_back(case, rank, seen)):
        return None
    frame = seen.top_line(compiles)
    return slow(
        case,
        RECOMPILING,
        rank,
        lost=lost,
        confidence=certainty(lost) if advanced else min(certainty(lost), HIGH),
        frame=frame,
        summary=f"torch.compile compiles again and again: {lost:.0%} of the training thread's time, "
        f"{stretches} times in {seen.seconds:.0f} s, at {show(frame)}",
        evidence=(
            case.saw(
                "stack",
                f"pid {rank.pid}",
                "the compiler comes back",
                f"{stretches} stretches, {lost:.0%} of {seen.samples} samples",
                "once, at the start",
            ),
        ),
        alternatives=(Alternative(cause="compiling", refuted_by="steps were made in between"),),
        next=("TORCH_LOGS=recompiles", "torch.compile(dynamic=True), mark_dynamic, or padded shapes"),
    )


def _trained(case: Case, rank: Member, seen: Profile) -> Profile:
    """The samples since the first step; all of them where a pass is known to have been made before."""
    begun = seen.sights[0].at - seen.sights[0].reading.span_seconds if seen.sights else 0.0
    return seen if passed_before(case.history, rank.pid, begun) else since_first_step(case, rank, seen)


def came_back(case: Case, rank: Member, seen: Profile) -> bool:
    """True if it did so in a loop that makes steps, where none are counted and one takes longer than the window."""
    if case.steps(rank) is not None or returns(case.history, seen) < TWICE:
        return False
    return seen.seen("optimizer") or bool(steps_around(case.history, seen))


def compiles(stack: Stack) -> bool:
    """True if a stack is inside the compiler, not merely inside a compiled function's wrapper."""
    return "compile" in tags(stack)


def stepped(seen: Profile) -> bool:
    """True if steps were made between compilations."""
    return (
        untorn(seen).turns(lambda stack: not tags(stack).isdisjoint({"backward", "optimizer"}) and not compiles(stack))
        >= TWICE
    )


RULES = (
    Rule(COMPILING, compiling),
    Rule(RECOMPILING, recompiling),
)
