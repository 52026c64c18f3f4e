"""torch.compile: the first compilation, and those that come back."""

from perfwatch.triage.busy import MOVES_SHARE, phases
from perfwatch.triage.cards.accelerated import since_first_step
from perfwatch.triage.case import Case
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.startup import in_compiler, passed_before, returns, steps_around, untorn
from perfwatch.triage.shares.thresholds import CERTAIN, HIGH, LATELY_SECONDS, MEDIUM, MOSTLY, TWICE
from perfwatch.triage.slowness import Line, Saw, certainty, samples, slow, worst
from perfwatch.triage.words.frames import tags
from perfwatch.verdict import Outcome
from perfwatch_probes.readings import ProcessUsage, Stack, Thread

COMPILING = Cause("compiling", "busy", "user_code", (Thread, Stack))
RECOMPILING = Cause("recompiling", "slow", "user_code", (Stack,))

COMPILERS = ("cc1plus", "cc1", "gcc", "g++", "clang", "ptxas", "nvcc", "ld", "as", "triton")
COMPILING_SHARE = 0.85  # where the model runs in between, but no optimizer: each shape is tried once before training
COMPILES = Line(
    COMPILING,
    "torch.compile is compiling{passed}",
    (
        samples("is in the compiler, or waits for it", "training code", "share"),
        Saw("thread", "something works", "{runs:.0%} of a core, {helpers} compile processes busy", "above 2 %"),
        Saw("engine", "made passes before", "it ran before this compilation", "never", share="passed"),
    ),
)
COMES_BACK = Line(
    RECOMPILING,
    "torch.compile compiles again and again: {lost:.0%} of the training thread's time, {times} times in {seen.seconds:time}, at {at}",
    (
        Saw(
            "stack",
            "the compiler comes back",
            "{times} stretches, {lost:.0%} of {seen.samples} samples",
            "once, at the start",
        ),
    ),
    (("compiling", "steps were made in between"),),
    ("TORCH_LOGS=recompiles", "torch.compile(dynamic=True), mark_dynamic, or padded shapes"),
)


def compiling(case: Case) -> Outcome:
    """Fires on a rank whose training thread is in the compiler."""
    at_work = [m for m in case.job.members.values() if m.alive and (m.role == "compile" or m.process.name in COMPILERS)]
    cores = (case.history.rate(ProcessUsage, m.pid, of=lambda u: u.cpu_seconds, seconds=6.0) or 0.0 for m in at_work)
    helpers = sum(used > MOVES_SHARE for used in cores)
    for phase in phases(case, moving=True):
        steps = case.progress[phase.rank.pid].kind == "moving"
        # What a backward pass needs is compiled in autograd's own thread, for which the training thread waits there.
        awaits = helpers > 0 and not steps
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
        passed = ", though passes were made before," if again else ""
        return phase.finding(case, COMPILES, MEDIUM if again else CERTAIN, share=share, helpers=helpers, passed=passed)
    return None


def recompiling(case: Case) -> Outcome:
    """Fires when the compiler comes back between steps."""
    found = worst(case, lambda rank, seen: _trained(case, rank, seen).share_where(compiles))
    if found is None:
        return None
    rank, whole, lost = found
    seen, steps = _trained(case, rank, whole), case.steps(rank)
    times = len(seen.runs(compiles))
    advanced = steps.advanced > 0 if steps is not None else stepped(seen)
    if times < TWICE or not (advanced or came_back(case, rank, seen)):
        return None
    sure, frame = min(CERTAIN if advanced else HIGH, certainty(lost)), seen.top_line(compiles)
    return slow(case, COMES_BACK, rank, lost, confidence=sure, frame=frame, seen=seen, times=times)


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
    steps = untorn(seen).turns(
        lambda stack: not tags(stack).isdisjoint({"backward", "optimizer"}) and not compiles(stack)
    )
    return steps >= TWICE


RULES = (Rule(COMPILING, compiling), Rule(RECOMPILING, recompiling))
