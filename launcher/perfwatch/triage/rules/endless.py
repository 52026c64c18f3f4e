"""A training thread in the program's own code that makes no step, and a program that is over and does not exit."""

from dataclasses import dataclass
from itertools import pairwise

from perfwatch.text import duration
from perfwatch.triage.cards.gpu import regime, regimes
from perfwatch.triage.case import Case
from perfwatch.triage.graph.decide import wakes_soon
from perfwatch.triage.hang import awaited_at, hung, left_over, named, nearest, others_train, with_loop
from perfwatch.triage.history import History, Seen, once
from perfwatch.triage.independence import MAY_COME, ONE_SOURCE
from perfwatch.triage.moving.loops import loop_of, moves_data, releases_gil, rereads
from perfwatch.triage.moving.memory import GUESSED, has_come_back, lull, since_training
from perfwatch.triage.moving.motion import moves, whole
from perfwatch.triage.moving.thresholds import LATELY_SECONDS, LOOP_SECONDS, SIGN_OF_LIFE
from perfwatch.triage.moving.within import FETCH, UPDATE, Anew, Within, begins_anew, inside_of, stays, turns_within
from perfwatch.triage.patience import long_timeout, temporal
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Facts, Rule
from perfwatch.triage.shares.profile import TRAINING_TAGS, at_training, profile
from perfwatch.triage.shares.thresholds import MANY_TIMES
from perfwatch.triage.shares.training import goes_through_rounds, prepares
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import RUNS, End, Node, culprit, node_of
from perfwatch.triage.waits.polling import only_asks
from perfwatch.triage.waits.threads import HELD_BY
from perfwatch.triage.words.code import TRAINS, line_of, names, retries
from perfwatch.triage.words.frames import any_tag, inside, is_user, own_frames, show, tags
from perfwatch.verdict import Abstention, Culprit, Evidence, Level, Missing, Outcome, doing
from perfwatch_probes import readings as r
from perfwatch_probes.readings import ProcessUsage, Stack, Thread

ENDLESS_PYTHON = Cause("endless_python", "hung", "user_code", (Thread, Stack))
IN_ONE_CALL = ENDLESS_PYTHON.line("""
    {who} does not leave its loop, inside one {within}
    - not evaluating: no other part of the model, no other batch was seen
    - next: look at {loop}: what would end that loop?
""")
GETS_NO_BATCH = ENDLESS_PYTHON.line("""
    the loop at {loop} starts its loader again and again, and gets no batch
    - not serial_loading: the data set ends, and gives no batch
    - not computing_on_host: the data set ends
    - next: check the filter at {at}: does any sample pass?
""")
NEVER_LEFT = ENDLESS_PYTHON.line("""
    it runs only forward passes and has not left its loop at {loop} for {lasts:time}
    - not evaluating: only by duration: no evaluation was seen to take this long
    - next: look at {loop}: what would end that loop?
""")
TURNS_FOR_EVER = ENDLESS_PYTHON.line("""
    {who} {does}
    - not computing_on_host: only by duration: longer than the hang timeout
    - next: look at {at}: what would end that loop?
""")
READS_AGAIN = "reads a file again and again, and what it waits for is not there"
# Starts of a loader that were sampled. A step takes longer than such a start, so steps between them would be missed with e**-4.
STARTS_SEEN = 4
MANY_SAMPLES = 300  # a pass that is left for 1 % of the time would have shown it
# A fetch asks for one item after the other, and each may turn in the same loop: it is left for a thousandth of the time.
MANY_OF_A_FETCH = 3000
SLEEPS = ENDLESS_PYTHON.line("""
    [{starts} is blocked on {lock}; ]{who} {does}
    - next: [{held:if}release the lock before the sleep at {at}]
    - next: [look at {at}: is that sleep meant to be so long?][{unread:if}look in the program for a sleep of days]
    - next: perfwatch capture stacks {start}
""")
NAPS = ENDLESS_PYTHON.line("""
    {who} polls again and again and gets no result
    - not waiting_for_file: no call that looks at a file is in that loop
    - next: look at {at}: what would end that loop?
""")
DAY_SECONDS = 86400.0  # who trains again and again may rest for hours in between
RECENT_SECONDS, FEW_RECENT = 6.0, 20
REMOTE_CALL = "rpc"  # the edge from a rank that waits for an answer to the thread of another one that executes the call

NAPPING_SECONDS = 15.0  # at one line, before it is even suspected
OTHER_WORK = ("compile", "import", "save", "load", "rendezvous", "exit", "debugger")

HUNG_AT_EXIT = Cause("hung_at_exit", "hung", "user_code", (Thread, Stack))
STARTS = ("<module>", "_run_module_as_main", "_run_module_code")
UNREADABLE = "\ufffd"  # in a command line: that file's name is not UTF-8, and py-spy 0.4 leaves its frames out
DOES_NOT_END = HUNG_AT_EXIT.line("""
    training has finished, but the process does not exit: {who} {does}
    - not checkpointing: no save frame and no I/O on the chain
    - next: [{unread:if}the reader of that queue stopped before it was empty: drain the queue, or call queue.cancel_join_thread()]
    - next: [{left:if}end that thread before the program ends, or start it with daemon=True]
    - next: perfwatch capture stacks {start}
""")


# A rank that makes forward passes alone and stays in one ``while`` loop of the program's own.
#
# A program that streams an answer token by token stays in such a loop until the last token comes. One that never comes looks like
# an evaluation, for all that it does is one. What tells them apart: a loop that ends is left, if only for a thousandth of the time,
# and evaluations that were seen to end took so long.

UPDATES = ("backward", "optimizer", "scaler")
# What a loop calls that goes through something, or serves requests: it ends with its input, or is a service.
GIVEN = frozenset("next get fetch read recv receive load pop popleft poll take accept input put send".split())
LONGEST_TIMES = 30.0  # the longest evaluation that was seen to end
LONG = 8.0  # times the patience: a watch remembers no more than ten minutes, and of longer ones nothing can be told


@dataclass(frozen=True)
class Unleft:
    """The loop, and for how long it was not left."""

    frame: r.Frame  # the loop's own line, as it was seen last
    samples: int
    seconds: float  # for which it was observed there
    usual_seconds: float | None  # the longest pause between updates with that function in it; None: nothing to go by
    doubtful_seconds: float  # from when on it is no evaluation for all that is known ...
    told_seconds: float  # ... and from when on it has no end, if it was seen to end before

    @property
    def doubted(self) -> bool:
        """True if it has lasted too long to be called an evaluation."""
        return self.seconds >= self.doubtful_seconds


@once
def unleft(case: Case, rank: Member) -> Unleft | None:
    """The ``while`` loop around forward passes that a rank is in; None where there is none, or it trains in there."""
    history, node = case.history, case.chains[rank.pid].start
    loop = loop_of(history, node)
    loops, at = loop.kinds, loop.frame
    line = line_of(history, at)
    if loops[:1] != ("while",) or at is None or line is None or not is_user(at) or _is_given(line):
        return None
    series = [seen for seen in history.series(r.Stack, node.pid, node.tid) if seen.reading.frames]
    stacks = whole(series)
    frames = own_frames(stacks[-1].reading) if stacks else ()
    depth = next((n for n, one in enumerate(frames) if (one.function, one.file) == (at.function, at.file)), None)
    if depth is None or inside_of(history, frames[depth:]) is not None:
        return None
    times = stays(history, stacks, frames[depth:], line.loops)
    now = times[-1] if times else None
    if now is None or now.loop is None:
        return None
    before = [one for one in series if one.at < now.begin]
    since = [one for one in series if one.at >= now.begin]
    passes = sum(one.reading.samples for one in since if "forward" in tags(one.reading))
    if passes < MANY_TIMES or any(_updates(one) for one in since):
        return None
    usual, patience = _usual(before, at), temporal(case)
    least = None if usual is None or LONGEST_TIMES * usual > LONG * patience else LONGEST_TIMES * usual
    doubtful = long_timeout(case) if least is None else max(patience, least)
    return Unleft(
        frame=now.loop,
        samples=now.samples,
        seconds=now.seconds,
        usual_seconds=None if least is None else usual,
        doubtful_seconds=doubtful,
        told_seconds=max(long_timeout(case), doubtful),
    )


def _is_given(line: r.SourceLine) -> bool:
    """True if a loop asks for what it goes through, hands something on, or trains by its text."""
    called = names(line.loop_calls)
    return line.hands_out or called >= TRAINS or any(GIVEN.intersection(name.lower().split("_")) for name in called)


def _usual(before: list[Seen[r.Stack]], at: r.Frame) -> float | None:
    """The longest time between two updates that were seen, with that function in between."""
    updates = [n for n, one in enumerate(before) if _updates(one)]
    pauses = [
        before[later].at - before[earlier].at
        for earlier, later in pairwise(updates)
        if any(inside(at, one.reading) for one in before[earlier + 1 : later])
    ]
    return max(pauses, default=None)


def _updates(seen: Seen[r.Stack]) -> bool:
    return any_tag(tags(seen.reading), *UPDATES)


# In the program


def endless_python(case: Case) -> Outcome:
    """Fires on a training thread that sleeps or turns in the program's own code."""
    return nearest(_of_rank(case, rank) for rank in case.ranks)


def _of_rank(case: Case, rank: Member) -> Outcome:
    chain, end = case.chains[rank.pid], case.chains[rank.pid].end
    if (loop := unleft(case, rank)) is not None and loop.doubted:
        return never_left(case, chain, loop)
    if case.progress[rank.pid].kind == "moving":
        return None
    if (anew := begins_anew(case.history, rank.pid, chain.start.tid)) is not None:
        return gets_no_batch(case, chain, anew)
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
        return naps(case, chain)
    if within := turns_within(case.history, rank.pid, chain.start.tid):
        return caught(case, chain, within) if end.kind in RUNS or at_work(case, end) else None
    seen = profile(case.history, end.node.pid, end.node.tid, seconds=RECENT_SECONDS)
    if seen.samples < FEW_RECENT:  # the next record is late
        seen = profile(case.history, end.node.pid, end.node.tid, seconds=LOOP_SECONDS)
    if not seen.share_where(at_training) and not seen.seen(*OTHER_WORK) and _turns_in_python(case, end):
        return turns_for_ever(case, chain, since_training(case, rank))
    return None


def _never_answers(case: Case, chain: Chain) -> bool:
    """True if the one call that is executed sleeps while all ranks stand: else it may be meant to. Of several the one is not known."""
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
    """True if it runs Python, or torch's operations at several lines of a loop that waits for a condition, its own or a library's."""
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
    locked = chain.through == {"lock"}
    rests = wait is not None and wait.remaining_seconds is not None and wait.remaining_seconds <= DAY_SECONDS
    return hung(
        case,
        SLEEPS,
        chain,
        ceiling=MAY_COME if rests else None,
        **Facts(starts=starts(chain), lock=link.waits_for if locked else None, does=doing(awaited_at(case, chain))),
        **Facts(held=locked and HELD_BY in link.waits_for, unread=frame is None),
    )


def naps(case: Case, chain: Chain) -> Outcome:
    """It sleeps a little at one and the same line, again and again, and does nothing in between."""
    node = chain.end.node
    rank = case.job.members[chain.start.pid]
    lasts = lull(case, rank, chain.end.silent_seconds or 0.0, temporal(case))
    silent = lasts.seconds
    if silent < min(NAPPING_SECONDS, temporal(case) / 2) or len(case.ranks) > 1:
        return None  # of several ranks the others tell whether this one is missed
    if has_come_back(case, rank, silent) or moves(case.history, node.pid, node.tid).recurrent:
        return None
    if any_tag(node.tags, *TRAINING_TAGS, *OTHER_WORK):
        return None
    if not only_asks(case.history, node) or (node.stack is not None and retries(case.history, node.stack)):
        return None
    return hung(case, NAPS, chain, patience=temporal(case), silent=silent, evidence=lasts.evidence, ceiling=GUESSED)


# Caught in a loop: of one module's forward, of one batch's fetch, around passes, or outside of training


def at_work(case: Case, end: End) -> bool:
    """True if a thread waits for a card that serves it: it is let go on, if only to ask again in the next turn of its loop."""
    card = regime(case.history, end.detail) if end.kind == "gpu" else None
    return card is not None and card.kind in ("work", "wait") and not card.polls


def caught(case: Case, chain: Chain, within: Within) -> Outcome:
    """It runs in training code, and never comes out of one loop there."""
    steps = case.progress[chain.start.pid].steps
    counted = steps is not None and steps.ago_seconds is not None and steps.longest_seconds is not None
    known = counted or within.usual_seconds > 0.0  # how long it takes here, by what was seen before
    fetches = within.called == FETCH and not known
    computes = releases_gil(case.history, chain.start) or computes_on_card(case, chain.start.pid)
    takes_its_time = fetches or moves_data(case.history, chain.start) or (computes and not known)
    patience = max(long_timeout(case) if takes_its_time else temporal(case), within.usual_seconds)
    sure = Level.HIGH if counted else Level.MEDIUM
    if within.called == UPDATE and not within.usual_seconds:
        # An optimizer that was never seen to come out of its loop may do all of the training in one step.
        sure = Level.LOW
    enough = within.read and within.samples >= (MANY_OF_A_FETCH if fetches else MANY_SAMPLES)
    stays, sampled = f"stays in one loop of one {within.called}", f"{within.samples} samples, all of that loop"
    found = hung(
        case,
        IN_ONE_CALL,
        chain,
        patience=patience,
        silent=within.seconds,
        evidence=_stays(case, chain, stays, sampled, "other parts of a step in between", "steps"),
        ceiling=sure if enough else ONE_SOURCE,
        **Facts(within=within.called, loop=show(within.frame)),
    )
    return with_loop(found, chain.start, within.frame)


def _stays(case: Case, chain: Chain, stays: str, sampled: str, expected: str, come: str) -> tuple[Evidence, Evidence]:
    """What shows that a running thread stays in its loop; ``come``: what would come in a run that goes on."""
    pid = f"pid {chain.start.pid}"
    served = "is served by its card" if at_work(case, chain.end) else "waits for no other task"
    runs = f"{chain.start.motion.run_share or 0.0:.0%} of a core"
    return (
        case.saw("stack", pid, stays, sampled, expected),
        case.saw("schedstat", pid, served, runs, f"the same, and {come} come"),
    )


def gets_no_batch(case: Case, chain: Chain, anew: Anew) -> Outcome:
    """It starts its loader again and again, and no batch comes out of it."""
    begun, start = f"{anew.times} or more times since the last pass", chain.start
    return hung(
        case,
        GETS_NO_BATCH,
        chain,
        patience=temporal(case),
        silent=anew.seconds,
        evidence=_stays(case, chain, "reaches the end of its loader and restarts it", begun, "batches", "batches"),
        ceiling=Level.MEDIUM if anew.times >= STARTS_SEEN and not anew.by_workers else ONE_SOURCE,
        culprits=(Culprit(pid=start.pid, rank=start.rank, tid=start.tid, frame=show(anew.frame)),),
        **Facts(loop=show(anew.frame), at=show(start.frame)),
    )


def never_left(case: Case, chain: Chain, loop: Unleft) -> Outcome:
    """It makes forward passes in one loop that waits for a condition, for longer than an evaluation is given."""
    steps, before = case.progress[chain.start.pid].steps, loop.usual_seconds
    ended = "it ends" if before is None else f"out of it within {duration(before)}, when it was there before"
    sure = before is not None and loop.samples >= MANY_OF_A_FETCH
    updates = "backward" if steps is None else f"backward after step {steps.count}"
    sampled = f"{loop.samples} samples over {duration(loop.seconds)}, none outside of it, none in {updates}"
    return hung(
        case,
        NEVER_LEFT,
        chain,
        patience=loop.told_seconds,
        silent=loop.seconds,
        evidence=_stays(case, chain, f"stays in its while loop at {show(loop.frame)}", sampled, ended, "updates"),
        ceiling=Level.MEDIUM if sure else ONE_SOURCE,  # another evaluation, with far more to do, looks the same
        **Facts(loop=show(loop.frame), lasts=loop.seconds),
    )


def turns_for_ever(case: Case, chain: Chain, watched: float) -> Outcome:
    """It runs Python outside of training code. ``watched``: for how many seconds that has been so."""
    rank, steps = case.job.members[chain.start.pid], case.progress[chain.start.pid].steps
    loop = loop_of(case.history, chain.end.node)
    again, waits = rereads(case.history, chain.end.node), loop.may_turn_for_ever
    over_data = moves_data(case.history, chain.end.node) and not again
    if over_data and not waits:
        return None  # data come to an end
    computes = not again and (releases_gil(case.history, chain.end.node) or computes_on_card(case, chain.start.pid))
    rounds = goes_through_rounds(case, rank)
    # Of several ranks one computes for all, and mostly in a library.
    finite = loop.library is not None or (not waits and (bool(loop.kinds) or len(case.ranks) > 1))
    counts = over_data or computes or rounds or finite or case.awaited_at_start(chain.start.pid)
    patience = long_timeout(case) if counts else temporal(case)
    lasts = lull(case, rank, watched, patience)
    silent = lasts.seconds if steps is None or steps.ago_seconds is None else steps.ago_seconds
    if counts and silent < patience and not (waits and (computes or rounds)):
        return None  # a loop over something comes to its end: long work until proved otherwise
    node = chain.end.node
    if has_come_back(case, rank, silent) or trains_around(case.history, node):
        return None
    sure = Level.LOW if prepares(case, rank) else Level.MEDIUM
    if waits and not (over_data or computes or rounds or loop.tests_only or again):
        sure = Level.HIGH  # a long finite computation cannot be told apart by anything but time
    found = hung(
        case,
        TURNS_FOR_EVER,
        chain,
        patience=patience,
        silent=silent,
        evidence=(*lasts.evidence, *gets_nowhere(case, chain.start)),
        ceiling=min(lasts.ceiling, sure),
        does=READS_AGAIN if again else "runs Python and makes no step",
    )
    return with_loop(found, chain.end.node, loop.frame)


def trains_around(history: History, node: Node) -> bool:
    """True if its line is in a loop that trains, or collects garbage: a long call returns, and samples miss a brief step."""
    source = line_of(history, node.frame)
    return source is not None and ("collect" in names(source.calls) or names(source.loop_calls) >= TRAINS)


def gets_nowhere(case: Case, node: Node) -> tuple[Evidence, ...]:
    """What shows that a running thread makes no progress: no training code among its samples, no I/O of its own."""
    seen = profile(case.history, node.pid, node.tid, seconds=LOOP_SECONDS)
    stays = case.saw(
        "stack",
        f"pid {node.pid}",
        "stays in the program's own code",
        f"{seen.samples} samples below {show(node.frame)}, none in training code",
        "backward and optimizer in each step",
    )
    entity = f"pid {node.pid} thread {node.tid}"
    if node.motion.io_calls != 0:
        return (stays,)
    return stays, case.saw("io", entity, "does no I/O", "0 calls", "reads or writes now and then", node.thread_at)


def computes_on_card(case: Case, pid: int) -> bool:
    """True if a card of the process has work all the time: what is computed there may take long."""
    return any(card.kind == "work" for card in regimes(case.history, pid))


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
        until = (
            f"thread {left[0].name or left[0].tid} at {show(left[0].frame)} to end" if left else awaited_at(case, chain)
        )
        return hung(
            case,
            DOES_NOT_END,
            chain,
            ceiling=past if past < 1.0 else None,
            culprits=map(culprit, left) if left else None,
            **Facts(does=doing(until), unread="feeder" in chain.end.node.tags, left=bool(left), start=rank.pid),
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
    # A script may lie in an installed package.
    own = is_user(stack.frames[-1]) or stack.frames[-1].file in process.command
    return MAY_COME if own else 0.0


def _started(stack: Stack) -> bool:
    """True if the program itself, or what starts a child of ``multiprocessing``, is at the root."""
    root = stack.frames[-1].function if stack.frames else ""
    return root in STARTS or root.startswith("_bootstrap")


RULES = (Rule(ENDLESS_PYTHON, endless_python), Rule(HUNG_AT_EXIT, hung_at_exit))
