"""Torch.compile (dynamo, inductor, Triton) is compiling."""

from perfwatch.triage.busy import MOVES_SHARE, phases
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.rules.recompiling import came_back, stepped
from perfwatch.triage.shares.in_compiler import in_compiler, returns, steps_around
from perfwatch.triage.slowness import WINDOW_SECONDS
from perfwatch.verdict import Outcome
from perfwatch_probes.readings import ProcessUsage, Stack, Thread

CAUSE = Cause("compiling", "busy", "user_code", (Thread, Stack))

COMPILING_SHARE = 0.5
FIRST = 0.92
AGAIN = 0.68  # a pass was made before: it may be the second shape, or one of many more to come
NEARLY_ALL = 0.85  # where the model runs in between, but no optimizer: each shape is tried once before training
COMPILERS = ("cc1plus", "cc1", "gcc", "g++", "clang", "ptxas", "nvcc", "ld", "as", "triton")


def judge(case: Case) -> Outcome:
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
        if share < (NEARLY_ALL if steps else COMPILING_SHARE):
            continue
        whole = case.profile(phase.rank, WINDOW_SECONDS)
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
            CAUSE,
            "torch.compile is compiling" + (", though passes were made before," if again else ""),
            AGAIN if again else FIRST,
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


RULES = (Rule(CAUSE, judge),)
