"""A training thread in the program's own code that makes no step, and a program that is over and does not exit."""

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, named, nearest, stacks_of, who
from perfwatch.triage.independence import MAY_COME
from perfwatch.triage.moving.caught import at_work, caught, gets_no_batch, never_left, turns_for_ever
from perfwatch.triage.moving.loops import loop_of, rereads
from perfwatch.triage.moving.memory import GUESSED, has_come_back, lull, since_training
from perfwatch.triage.moving.motion import BURSTS, bursts, moves
from perfwatch.triage.moving.progress import LATELY_SECONDS
from perfwatch.triage.moving.thresholds import LOOP_SECONDS, SIGN_OF_LIFE
from perfwatch.triage.moving.unleft import unleft
from perfwatch.triage.moving.within import begins_anew, turns_within
from perfwatch.triage.patience import STRUCTURAL_SECONDS, outlasts, temporal, wakes_soon
from perfwatch.triage.ranks.absentee import left_over, others_train
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.profile import TRAINING_TAGS, at_training, profile
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import RUNS, End, Node, culprit, node_of
from perfwatch.triage.waits.polling import only_asks
from perfwatch.triage.waits.threads import HELD_BY, OTHERS_MOVE
from perfwatch.triage.words.code import retries
from perfwatch.triage.words.frames import any_tag, is_user, show, tags
from perfwatch.verdict import Abstention, Missing, Outcome, doing
from perfwatch_probes.readings import ProcessUsage, Stack, Thread

ENDLESS_PYTHON = Cause("endless_python", "hung", "user_code", (Thread, Stack))
DAY_SECONDS = 86400.0  # who trains again and again may rest for hours in between
RECENT_SECONDS, FEW_RECENT = 6.0, 20
REMOTE_CALL = "rpc"  # the edge from a rank that waits for an answer to the thread of another one that executes the call

NAPPING_SECONDS = 15.0  # at one line, before it is even suspected
OTHER_WORK = ("compile", "import", "save", "load", "rendezvous", "exit", "debugger")

HUNG_AT_EXIT = Cause("hung_at_exit", "hung", "user_code", (Thread, Stack))
INFERRED = 0.78  # only what is missing from the stack speaks for it
STARTS = ("<module>", "_run_module_as_main", "_run_module_code")
UNREADABLE = "\ufffd"  # in a command line: that file's name is not UTF-8, and py-spy 0.4 leaves its frames out
UNREAD = "the reader of that queue stopped before it was empty: let it read on, or queue.cancel_join_thread()"


# In the program


def endless_python(case: Case) -> Outcome:
    """Fires on a training thread that sleeps or turns in the program's own code."""
    return nearest(_of_rank(case, rank) for rank in case.ranks)


def _of_rank(case: Case, rank: Member) -> Outcome:
    chain, end = case.chains[rank.pid], case.chains[rank.pid].end
    if (loop := unleft(case, rank)) is not None and loop.doubted:
        return never_left(case, ENDLESS_PYTHON, chain, loop)
    if case.progress[rank.pid].kind == "moving":
        return None
    if (anew := begins_anew(case.history, rank.pid, chain.start.tid)) is not None:
        return gets_no_batch(case, ENDLESS_PYTHON, chain, anew)
    if chain.through == {REMOTE_CALL}:
        return _sleeps(case, chain) if _never_answers(case, chain) else None
    if chain.through - {"supervised", "lock"}:
        return None
    if end.node.stack is None:
        lacking = case.lacks("stacks")
        if lacking and _sleeps_for_days(case, end):
            return _sleeps(case, chain)
        lacking = lacking or Missing(witness="stacks", reason=f"no stack of pid {rank.pid} was read")
        return Abstention(cause=ENDLESS_PYTHON.name, missing=(lacking,)) if end.kind in ("sleep", "python") else None
    if end.kind == "sleep" and end.still and not wakes_soon(case, end):
        return _sleeps(case, chain)
    if end.kind == "sleep" and end.node.naps:
        return naps(case, ENDLESS_PYTHON, chain)
    if within := turns_within(case.history, rank.pid, chain.start.tid):
        return caught(case, ENDLESS_PYTHON, chain, within) if end.kind in RUNS or at_work(case, end) else None
    seen = profile(case.history, end.node.pid, end.node.tid, seconds=RECENT_SECONDS)
    if seen.samples < FEW_RECENT:  # the next record is late
        seen = profile(case.history, end.node.pid, end.node.tid, seconds=LOOP_SECONDS)
    if not seen.share_where(at_training) and not seen.seen(*OTHER_WORK) and _turns_in_python(case, end):
        return turns_for_ever(case, ENDLESS_PYTHON, chain, since_training(case, rank))
    return None


def _never_answers(case: Case, chain: Chain) -> bool:
    """Whether the one call that is executed sleeps while all ranks stand: else it may be meant to. Of several the one is not known."""
    if len(chain.ends) > 1 or not all(one.start.motion.frozen for one in case.chains.values()):
        return False
    return chain.end.kind == "sleep" and chain.end.still is True and not wakes_soon(case, chain.end)


def _sleeps_for_days(case: Case, end: End) -> bool:
    """True if the main thread, whose stack cannot be read, sleeps longer than any program intends, and its process uses no CPU time."""
    node, left = end.node, end.node.wait.remaining_seconds if end.node.wait is not None else None
    if end.kind != "sleep" or not end.still or node.tid != node.pid or left is None or left <= DAY_SECONDS:
        return False
    used = [
        (seen.at, seen.reading.cpu_seconds)
        for seen in case.history.series(ProcessUsage, node.pid, seconds=LATELY_SECONDS)
    ]
    return len(used) > 1 and used[-1][1] - used[0][1] <= SIGN_OF_LIFE * (used[-1][0] - used[0][0])


def _turns_in_python(case: Case, end: End) -> bool:
    """Whether it runs Python, or torch's operations at several lines of a loop that waits for a condition, its own or a library's."""
    loop = loop_of(case.history, end.node)
    if (end.kind == "native" and loop.library is not None) or rereads(case.history, end.node):
        return True
    if end.kind != "native" or not loop.may_turn_for_ever:
        return end.kind == "python"
    return len(profile(case.history, end.node.pid, end.node.tid, seconds=LOOP_SECONDS).lines()) > 1


def starts(chain: Chain) -> str:
    """The training thread as the subject of a sentence."""
    return named(chain.start, chain.start.pid).removeprefix("the ")


def _sleeps(case: Case, chain: Chain) -> Outcome:
    wait, frame, link = chain.end.node.wait, chain.end.node.frame, chain.links[0]
    sleeper = f"{who(chain)} {doing(chain.awaited)}"
    locked = chain.through == {"lock"}
    blocked = f"{starts(chain)} is blocked on {link.waits_for}; " if locked else ""
    rests = wait is not None and wait.remaining_seconds is not None and wait.remaining_seconds <= DAY_SECONDS
    return hung(
        case,
        ENDLESS_PYTHON,
        chain,
        summary=f"{blocked}{sleeper}",
        patience=STRUCTURAL_SECONDS if outlasts(case, chain.end) else temporal(case),
        next=(
            *((f"release the lock before the sleep at {show(frame)}",) if locked and HELD_BY in link.waits_for else ()),
            f"look at {show(frame)}: is that sleep meant to be so long?"
            if frame
            else "look in the program for a sleep of days",
            stacks_of(chain.start.pid),
        ),
        ceiling=MAY_COME if rests else 1.0,
    )


def naps(case: Case, cause: Cause, chain: Chain) -> Outcome:
    """It sleeps a little at one and the same line, again and again, and does nothing in between."""
    node = chain.end.node
    rank = case.job.members[chain.start.pid]
    lasts = lull(case, rank, chain.end.silent_seconds or 0.0, temporal(case))
    silent = lasts.seconds
    if silent < min(NAPPING_SECONDS, temporal(case) / 2) or len(case.ranks) > 1:
        return None  # of several ranks the others tell whether this one is missed
    if bursts(case.history, node.pid, node.tid) >= BURSTS or has_come_back(case, rank, silent):
        return None  # it is let go on now and then, too briefly for a sample to see what it does
    if moves(case.history, node.pid, node.tid).recurrent or any_tag(node.tags, *TRAINING_TAGS, *OTHER_WORK):
        return None
    if not only_asks(case.history, node) or (node.stack is not None and retries(case.history, node.stack)):
        return None
    return hung(
        case,
        cause,
        chain,
        summary=f"{who(chain)} polls again and again and gets no result",
        patience=temporal(case),
        silent=silent,
        evidence=lasts.evidence,
        ceiling=GUESSED,
        but={"waiting_for_file": "no call that looks at a file is in that loop"},
        next=(f"look at {show(chain.end.node.frame)}: what would end that loop?",),
    )


# At exit


def hung_at_exit(case: Case) -> Outcome:
    """Fires on a main thread in the interpreter's shutdown whose chain ends in something still."""
    for rank in case.ranks:
        main = node_of(case.history, case.job, rank.pid)
        chain = case.chains[rank.pid]
        past = past_its_program(case, main)
        if not past or main.motion.frozen is False or wakes_soon(case, chain.end):
            continue
        if chain.start.tid != main.tid and chain.start.stack is not None and at_training(chain.start.stack):
            continue  # another thread trains, and the main one only waits for it to end
        if others_train(case, rank.pid):
            continue
        if chain.end.still is False or any_tag(chain.end.node.tags, "save"):
            continue
        left = left_over(case, chain)
        waits_for = f"thread {left[0].name or left[0].tid} at {show(left[0].frame)} to end" if left else ""
        return hung(
            case,
            HUNG_AT_EXIT,
            chain,
            summary=f"training is over, but the process does not end: {who(chain)} {doing(waits_for or chain.awaited)}",
            patience=_exit_patience(case, chain),
            ceiling=min(past, MAY_COME) if chain.end.detail == OTHERS_MOVE else past,
            but={"checkpointing": "no save frame and no io on the chain"},
            next=(
                *((UNREAD,) if "feeder" in chain.end.node.tags else ()),
                *(("end that thread before the program ends, or start it with daemon=True",) if left else ()),
                stacks_of(rank.pid),
            ),
            culprits=map(culprit, left) if left else None,
        )
    return None


def past_its_program(case: Case, main: Node) -> float:
    """How sure it is that a main thread is past its program: in frames of the shutdown, or in what the interpreter itself has called.

    What has no ``<module>`` below it is an exit handler only where nothing else explains that: the program is a python's, all of
    its frames can be read, and its own start was seen or would be.
    """
    stack = main.stack
    if stack is None or not stack.frames:
        return 0.0
    if any_tag(tags(stack), "exit", "group_destroy"):
        return 1.0
    process = case.job.members[main.pid].process
    if _started(stack) or not (process.executable or "").startswith("python") or UNREADABLE in "".join(process.command):
        return 0.0
    before = (seen.reading for seen in case.history.series(Stack, main.pid, main.tid))
    if any(_started(one) and (is_user(one.frames[-1]) or one.frames[-1].function != STARTS[0]) for one in before):
        return 1.0
    own = (
        is_user(stack.frames[-1]) or stack.frames[-1].file in process.command
    )  # a script may lie in an installed package
    return INFERRED if own else 0.0


def _started(stack: Stack) -> bool:
    """Whether the program itself, or what starts a child of ``multiprocessing``, is at the root."""
    root = stack.frames[-1].function if stack.frames else ""
    return root in STARTS or root.startswith("_bootstrap")


def _exit_patience(case: Case, chain: Chain) -> float:
    # Only this process could read it, and it is over; or a terminal is held.
    unread = chain.end.kind == "pipe_full" and not chain.end.others
    locked = chain.end.kind in ("lock", "cycle") and chain.end.detail != OTHERS_MOVE
    certain = locked or unread or outlasts(case, chain.end)
    return STRUCTURAL_SECONDS if certain else temporal(case)


RULES = (
    Rule(ENDLESS_PYTHON, endless_python),
    Rule(HUNG_AT_EXIT, hung_at_exit),
)
